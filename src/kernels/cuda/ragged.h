#pragma once
// Rows of heads that have different numbers of them. How many only the device may know.

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/grouped_layout.h"

namespace pith::cuda {

struct RaggedHeads {
  const int32_t* rows = nullptr;    // [G] on the device; null: all heads have as many
  const int32_t* begins = nullptr;  // [G] a head's first row; null: heads are a stride apart

  PITH_BOTH_SIDES int rows_of(size_t head, int alike) const { return rows ? rows[head] : alike; }
  /// Where a head's first row is, of `unit` numbers.
  PITH_BOTH_SIDES size_t at(size_t head, size_t stride, size_t unit = 1) const {
    return begins ? static_cast<size_t>(begins[head]) * unit : head * stride;
  }
};

}  // namespace pith::cuda
