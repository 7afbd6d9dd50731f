#pragma once
// The use of the sums s = W x + bias of a matrix-vector product.

#include <cstdint>

#include "core/both_sides.h"

namespace pith::cuda {

enum class MatvecEnd : uint8_t {
  kStore,  ///< y = s
  kAdd,    ///< y += s
  kGate,   ///< y[i] = silu(s[i]) s[out / 2 + i]
  kGelu,   ///< y[i] = gelu(s[i]) s[out / 2 + i]
};

/// Rows of the matrix that make one number.
PITH_BOTH_SIDES constexpr int parts_of(MatvecEnd end) {
  return end == MatvecEnd::kGate || end == MatvecEnd::kGelu ? 2 : 1;
}

/// f.operator()<end>().
template <class F>
void with_end(MatvecEnd end, const F& f) {
  switch (end) {
    case MatvecEnd::kStore: return f.template operator()<MatvecEnd::kStore>();
    case MatvecEnd::kAdd: return f.template operator()<MatvecEnd::kAdd>();
    case MatvecEnd::kGate: return f.template operator()<MatvecEnd::kGate>();
    case MatvecEnd::kGelu: return f.template operator()<MatvecEnd::kGelu>();
  }
}

}  // namespace pith::cuda
