#pragma once
// Scores of a tile to probabilities, for kernels whose tile rows are queries: a lane holds rows
// r and r + 8 of its warp's 16, columns 8 g + 2 c and 8 g + 2 c + 1.

#include "attend/cuda/prefill_list.cuh"

namespace pith::cuda {

/// What a lane carries for its two queries.
struct QuerySums {
  float top[2] = {kUnseen, kUnseen};
  float sum[2] = {0, 0};  // over this lane's columns only
};

/// Scores become 2^(scale s + weight - top). The maximum is followed only when it rises by more
/// than kLazy; then `factor` is what the values summed so far must be multiplied by, and the result
/// true. Columns from limit[i] - first_column on do not count if `masked`.
template <int N>
__device__ inline bool soften(float (&s)[N][4], QuerySums& rows, float (&factor)[2], float scale,
                              const float* weights, bool masked, int first_column,
                              const int (&limit)[2]) {
  const int c = threadIdx.x % 4;
  float most[2] = {kUnseen, kUnseen};
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
#pragma unroll
  for (int g = 0; g < N; ++g) {
    most[0] = fmaxf(most[0], fmaxf(s[g][0], s[g][1]));
    most[1] = fmaxf(most[1], fmaxf(s[g][2], s[g][3]));
  }
  bool rises = false;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 1));
    most[i] = fmaxf(most[i], __shfl_xor_sync(~0u, most[i], 2));
    const bool rise = most[i] > rows.top[i] + kLazy;
    factor[i] = rise ? exp2_fast(rows.top[i] - most[i]) : 1.0f;
    rows.top[i] = rise ? most[i] : rows.top[i];
    rows.sum[i] *= factor[i];
    rises |= rise;
  }
#pragma unroll
  for (int g = 0; g < N; ++g) {
#pragma unroll
    for (int i = 0; i < 4; ++i) s[g][i] = exp2_fast(s[g][i] - rows.top[i / 2]);
    rows.sum[0] += s[g][0] + s[g][1];
    rows.sum[1] += s[g][2] + s[g][3];
  }
  return __any_sync(~0u, rises);
}

/// 1 / the sum over all columns.
__device__ inline float inverse_sum(float sum) {
  sum += __shfl_xor_sync(~0u, sum, 1);
  sum += __shfl_xor_sync(~0u, sum, 2);
  return 1 / sum;  // a query sees itself: never zero
}

}  // namespace pith::cuda
