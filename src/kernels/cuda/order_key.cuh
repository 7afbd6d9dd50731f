#pragma once
// Scores as unsigned integers of the same order.

#include <cstdint>

namespace pith::cuda {

/// Larger scores have larger keys; NaN has the smallest.
__device__ inline uint32_t key_of(float score) {
  if (isnan(score)) return 0;
  const uint32_t bits = __float_as_uint(score);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

}  // namespace pith::cuda
