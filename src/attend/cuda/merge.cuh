#pragma once
// Partial results become one: warps of a block in shared memory, then blocks of a head through
// device memory, by the last block to arrive.

#include "attend/cuda/running.cuh"

namespace pith::cuda {

inline constexpr int kQueries = kDecodeQueries;  // columns of the tensor-core tile

/// A partial result is [kQueries, D + 2]: values, maximum, sum.
template <int D>
inline constexpr int kPart = kQueries*(D + 2);

struct MergeShape {
  int queries, warps;
};

/// Merges the block's warps and writes query i's [D] values, maximum and sum to part + i (D + 2).
/// Warp w may write `stride` bytes of shared memory at shared + w stride. All threads call it.
template <int D>
__device__ inline void merge_warps(float* part, char* shared, size_t stride, const Running<D>& run,
                                   const MergeShape& shape) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, c = lane % 4;
  auto* mine = reinterpret_cast<float*>(shared + warp * stride);
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float* row = mine + (2 * c + j) * (D + 2);
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
      row[channel_of(t, 0)] = run.acc[t][j];
      row[channel_of(t, 1)] = run.acc[t][2 + j];
    }
    const float sum = sum_over_rows(run.sum[j]);
    if (lane < 4) {
      row[D] = run.top[j];
      row[D + 1] = sum;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < shape.queries * (D + 2); i += blockDim.x) {
    const int query = i / (D + 2), x = i % (D + 2);
    const auto at = [&](int w, int column) {
      return reinterpret_cast<const float*>(shared + w * stride)[query * (D + 2) + column];
    };
    float top = kUnseen, total = 0;
#pragma unroll
    for (int w = 0; w < shape.warps; ++w) top = fmaxf(top, at(w, D));
#pragma unroll
    for (int w = 0; w < shape.warps; ++w) total += exp2_fast(at(w, D) - top) * at(w, x);
    part[i] = x == D ? top : total;
  }
  __syncthreads();
}

/// Where a head's result goes.
struct HeadOutput {
  float* out;      // [queries, D]
  float* log_sum;  // [queries] or null
  int queries;
};

template <int D>
__device__ inline void write_nothing_seen(const HeadOutput& to) {
  for (int i = threadIdx.x; i < to.queries * D; i += blockDim.x) to.out[i] = 0;
  if (to.log_sum && threadIdx.x < to.queries) to.log_sum[threadIdx.x] = -INFINITY;
}

/// The result from `count` parts. Shared memory: 2 kQueries count floats. All threads call it.
template <int D>
__device__ inline void merge_parts(const HeadOutput& to, const float* parts, int count,
                                   float* shared) {
  // Parts whose values are asked for together with the maxima: one wait instead of two.
  constexpr int kTogether = 20;
  float* tops = shared;                     // [count, kQueries]
  float* sums = shared + count * kQueries;  // [count, kQueries]
  const int pairs = to.queries * D / 2;
  const auto pair_at = [&](int part, int i) {
    const float* x = parts + static_cast<size_t>(part) * kPart<D> + i / (D / 2) * (D + 2);
    return __ldcg(reinterpret_cast<const float2*>(x) + i % (D / 2));
  };
  float2 early[kTogether];
#pragma unroll
  for (int w = 0; w < kTogether; ++w) {
    early[w] = {0, 0};
    if (w < count && threadIdx.x < pairs) early[w] = pair_at(w, threadIdx.x);
  }
  for (int i = threadIdx.x; i < count * kQueries; i += blockDim.x) {
    const int part = i / kQueries, query = i % kQueries;
    if (query >= to.queries) continue;
    const auto* end = reinterpret_cast<const float2*>(parts + static_cast<size_t>(part) * kPart<D> +
                                                      query * (D + 2) + D);
    const float2 two = __ldcg(end);
    tops[i] = two.x;
    sums[i] = two.y;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    const int query = i / (D / 2);
    float top = kUnseen, sum = 0;
    for (int w = 0; w < count; ++w) top = fmaxf(top, tops[w * kQueries + query]);
    float2 total = {0, 0};
    const auto add = [&](int w, float2 v) {
      const float share = exp2_fast(tops[w * kQueries + query] - top);
      sum += share * sums[w * kQueries + query];
      total.x += share * v.x;
      total.y += share * v.y;
    };
    const bool first = i == threadIdx.x;
#pragma unroll
    for (int w = 0; w < kTogether; ++w) {
      if (w < count) add(w, first ? early[w] : pair_at(w, i));
    }
#pragma unroll 8
    for (int w = kTogether; w < count; ++w) add(w, pair_at(w, i));
    const float scale = sum > 0 ? 1 / sum : 0;
    reinterpret_cast<float2*>(to.out)[i] = {total.x * scale, total.y * scale};
    if (to.log_sum && i % (D / 2) == 0) {
      to.log_sum[query] = sum > 0 ? (top + log2f(sum)) / kLog2e : -INFINITY;
    }
  }
  __syncthreads();
}

}  // namespace pith::cuda
