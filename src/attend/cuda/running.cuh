#pragma once
// State of a warp over the rows that it reads: the running maximum, the sum and the weighted
// values of up to 8 queries (Milakov & Gimelshein 2018). The maximum is followed only when it rises
// by more than 2^kLazy: then probabilities stay below 2^kLazy, and most tiles need no reduction
// over lanes.

#include "attend/cuda/decode.h"
#include "kernels/cuda/mma.cuh"

namespace pith::cuda {

/// Of codecs that need nothing beside the queries.
struct NothingAhead {};

inline constexpr float kLazy = 6;
inline constexpr float kLog2e = 1.4426950408889634f;
inline constexpr float kUnseen = -1e30f;  // a maximum before any score: finite, so 2^(x - x) is 1

/// State of a warp for its queries 2c and 2c + 1: maxima, sums, weighted values.
template <int D>
struct Running {
  float top[2] = {kUnseen, kUnseen};
  float sum[2] = {0, 0};  // over this lane's rows only
  float acc[D / 16][4] = {};
  // Codecs: what all channels of a group have in common, with group lane / 4 in lane's row.
  float low[4] = {};

  /// Scores [M][4] become probabilities in B's layout, packed as T; sums and maxima follow.
  template <class T, int M>
  __device__ void weigh(uint32_t (&p)[M][2], float (&s)[M][4]) {
    bool rises = false;
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) rises |= s[i][j] > top[j & 1] + kLazy;
    }
    if (__any_sync(~0u, rises)) follow(s);
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = exp2_fast(s[i][j] - top[j & 1]);
      sum[0] += s[i][0] + s[i][2];
      sum[1] += s[i][1] + s[i][3];
      p[i][0] = transpose_tile(pack<T>(s[i][0], s[i][1]));
      p[i][1] = transpose_tile(pack<T>(s[i][2], s[i][3]));
    }
  }

  template <int M>
  __device__ void follow(const float (&s)[M][4]) {
    float risen[2] = {top[0], top[1]};
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j) risen[j & 1] = fmaxf(risen[j & 1], s[i][j]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      risen[j] = max_over_rows(risen[j]);
      const float shrink = exp2_fast(top[j] - risen[j]);
      top[j] = risen[j];
      sum[j] *= shrink;
      low[j] *= shrink;
#pragma unroll
      for (int t = 0; t < D / 16; ++t) {
        acc[t][j] *= shrink;
        acc[t][j + 2] *= shrink;
      }
    }
  }
};

/// w [i] <- the weight of row first_row + 8 i + lane / 4, if rows have their own: nothing is done
/// with them, so that they are on their way while a warp waits for its rows.
template <int N>
__device__ inline void ask_weights(float (&w)[N], const DeviceSpan& span, int first_row) {
  const int first = first_row + static_cast<int>(threadIdx.x % kWarp) / 4;
#pragma unroll
  for (int i = 0; i < N; ++i) w[i] = 0;
  if (!span.log_weights) return;
#pragma unroll
  for (int i = 0; i < N; ++i) w[i] = span.log_weights[min(first + 8 * i, span.rows - 1)];
}
/// Scores of rows past the span's end vanish; weights are added.
template <int M>
__device__ inline void mask_and_weight(float (&s)[M][4], const float (&w)[2 * M],
                                       const DeviceSpan& span, int first_row) {
  const int first = first_row + static_cast<int>(threadIdx.x % kWarp) / 4;
#pragma unroll
  for (int i = 0; i < 2 * M; ++i) {
    const float weight = (span.log_weight + w[i]) * kLog2e;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      float& x = s[i / 2][2 * (i % 2) + j];
      x = first + 8 * i < span.rows ? x + weight : -INFINITY;
    }
  }
}
template <int M>
__device__ inline void mask_and_weight(float (&s)[M][4], const DeviceSpan& span, int first_row) {
  float w[2 * M];
  ask_weights(w, span, first_row);
  mask_and_weight(s, w, span, first_row);
}

/// Channel that acc[t][2 u + j] of this lane belongs to.
__device__ inline int channel_of(int t, int u) {
  const int r = (threadIdx.x % kWarp) / 4;
  return 64 * (t / 4) + 8 * r + 2 * (t % 4) + u;
}

}  // namespace pith::cuda
