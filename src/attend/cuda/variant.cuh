#pragma once
// Variants of attention (AttentionVariant in attend/attend.h) in kernels: a cap of scores, and one
// logit more in each query's softmax. Kernels without them pass a test of a uniform number.

#include "attend/cuda/running.cuh"

namespace pith::cuda {

/// Logits l count as cap tanh(l / cap). `in` = 0: as they are.
struct SoftCap {
  float in = 0, out = 0;

  /// Of scores that times `to_logits` are logits; cap = 0: none.
  static PITH_BOTH_SIDES SoftCap of(float cap, float to_logits) {
    if (cap == 0) return {};
    return {to_logits / cap, cap / to_logits};
  }
  /// Of scores to base 2.
  static SoftCap of_log2(float cap) { return of(cap, 1 / kLog2e); }

  __device__ float operator()(float x) const { return in != 0 ? out * tanhf(x * in) : x; }
  template <int N, int M>
  __device__ void apply(float (&s)[N][M]) const {
    if (in == 0) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
      for (int j = 0; j < M; ++j) s[i][j] = out * tanhf(s[i][j] * in);
    }
  }
};

/// A sink's logit to base 2, where a maximum may be it.
__device__ inline float sink_to_log2(float logit) {
  return fminf(fmaxf(logit * kLog2e, kUnseen), -kUnseen);
}

/// The softmax of a lane's two queries begins with their head's sink, which takes no value; four
/// lanes share a query. sinks [H] or null: none.
__device__ inline void begin_at_sink(float (&top)[2], float (&sum)[2], const float* sinks,
                                     int head) {
  if (!sinks) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    top[i] = sink_to_log2(sinks[head]);
    sum[i] = threadIdx.x % 4 == 0 ? 1 : 0;
  }
}

}  // namespace pith::cuda
