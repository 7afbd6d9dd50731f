#pragma once
// KVQuant (Hooper et al. 2024): non-uniform codes, keys per channel and before RoPE, values per
// row, with the numbers that stand out kept apart.

#include "policy/registry.h"

namespace pith {

struct NonUniformFormat;

/// The most rows that the GPU makes tables from, of one head's keys or values: a thread block holds
/// them all.
constexpr size_t kvquant_rows_on_gpu(size_t dim) { return dim > 64 ? 128 : 256; }

struct KvquantOptions {
  int bits = 3;
  std::optional<size_t> outliers;
  size_t calibrate = 128;
  Fields fields();
  /// Of either side.
  NonUniformFormat format() const;
};

}  // namespace pith
