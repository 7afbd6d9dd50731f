#pragma once
// Scores of a tile to probabilities, for kernels whose tile rows are queries: a lane holds rows
// r and r + 8 of its warp's 16, columns 8 g + 2 c and 8 g + 2 c + 1.

#include "attend/cuda/running.cuh"

namespace pith::cuda {

/// State of a lane for its two queries.
struct QuerySums {
  float top[2] = {kUnseen, kUnseen};
  float sum[2] = {0, 0};  // over this lane's columns only
};

/// Scores become 2^(scale s - top). The maximum is followed only when it rises by more than kLazy;
/// then `factor` is what the values summed so far must be multiplied by, and the result true.
template <int N>
__device__ inline bool soften(float (&s)[N][4], QuerySums& rows, float (&factor)[2], float scale) {
  bool rises = false;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float most[4] = {s[0][2 * i], s[0][2 * i + 1], s[1][2 * i], s[1][2 * i + 1]};  // four chains
#pragma unroll
    for (int g = 2; g < N; ++g) {
#pragma unroll
      for (int j = 0; j < 2; ++j) most[g % 2 * 2 + j] = fmaxf(most[g % 2 * 2 + j], s[g][2 * i + j]);
    }
    float all = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
    all = fmaxf(all, __shfl_xor_sync(~0u, all, 1));
    all = fmaxf(all, __shfl_xor_sync(~0u, all, 2)) * scale;
    const bool rise = all > rows.top[i] + kLazy;
    factor[i] = rise ? exp2_fast(rows.top[i] - all) : 1.0f;
    rows.top[i] = rise ? all : rows.top[i];
    rises |= rise;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum[4] = {};
#pragma unroll
    for (int g = 0; g < N; ++g) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float& x = s[g][2 * i + j];
        x = exp2_fast(fmaf(x, scale, -rows.top[i]));
        sum[g % 2 * 2 + j] += x;
      }
    }
    rows.sum[i] = fmaf(rows.sum[i], factor[i], sum[0] + sum[1] + (sum[2] + sum[3]));
  }
  return __any_sync(~0u, rises);
}

}  // namespace pith::cuda
