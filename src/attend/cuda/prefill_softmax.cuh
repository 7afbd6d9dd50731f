#pragma once
// Scores of a tile of a list's rows to probabilities, and their sums' inverse.

#include "attend/cuda/prefill_list.cuh"
#include "attend/cuda/query_softmax.cuh"

namespace pith::cuda {

/// Scores become 2^(scale s + weight - top), as the other one's. Columns from
/// limit[i] - first_column on do not count if `masked`.
template <int N>
__device__ inline bool soften(float (&s)[N][4], QuerySums& rows, float (&factor)[2], float scale,
                              const float* weights, bool masked, int first_column,
                              const int (&limit)[2]) {
  const int c = threadIdx.x % 4;
#pragma unroll
  for (int g = 0; g < N; ++g) {
    const float2 w = *reinterpret_cast<const float2*>(weights + 8 * g + 2 * c);
    s[g][0] = fmaf(s[g][0], scale, w.x);
    s[g][1] = fmaf(s[g][1], scale, w.y);
    s[g][2] = fmaf(s[g][2], scale, w.x);
    s[g][3] = fmaf(s[g][3], scale, w.y);
  }
  if (masked) {
#pragma unroll
    for (int g = 0; g < N; ++g) {
      const int column = first_column + 8 * g + 2 * c;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (column + i % 2 >= limit[i / 2]) s[g][i] = -INFINITY;
      }
    }
  }
  return soften(s, rows, factor, 1);
}

/// 1 / the sum over all columns.
__device__ inline float inverse_sum(float sum) {
  return 1 / sum_over_columns(sum);  // a query sees itself: never zero
}

}  // namespace pith::cuda
