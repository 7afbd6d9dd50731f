#pragma once
// Partial results become one: warps of a block in shared memory, then blocks of a head through
// device memory, by the last block to arrive.

#include "attend/cuda/variant.cuh"

namespace pith::cuda {

inline constexpr int kQueries = kDecodeQueries;  // columns of the tensor-core tile

/// A partial result is [kQueries, D + 2]: values, maximum, sum.
template <int D>
inline constexpr int kPart = kQueries*(D + 2);

struct MergeShape {
  int queries, warps;
  int apart;  // numbers from a query's partial result to the next one's
};

/// Merges the block's warps and writes query i's [D] values, maximum and sum to part + i apart.
/// Warp w may write `stride` bytes of shared memory at shared + w stride. channel(t, u): what
/// acc[t][2 u + j] of this lane belongs to, by warps. All threads call it.
template <int D, class Channel>
__device__ inline void merge_warps(float* part, char* shared, size_t stride, const Running<D>& run,
                                   const MergeShape& shape, const Channel& channel) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, c = lane % 4;
  auto* mine = reinterpret_cast<float*>(shared + warp * stride);
  __syncwarp();  // all lanes are done with what lay there
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    float* row = mine + (2 * c + j) * (D + 2);
#pragma unroll
    for (int t = 0; t < D / 16; ++t) {
      row[channel(t, 0)] = run.acc[t][j];
      row[channel(t, 1)] = run.acc[t][2 + j];
    }
    const float sum = sum_over_rows(run.sum[j]);
    if (lane < 4) {
      row[D] = run.top[j];
      row[D + 1] = sum;
    }
  }
  __syncthreads();
  // A thread two channels of a query; those of the first two also the maximum and the sum.
  for (int i = threadIdx.x; i < shape.queries * (D / 2); i += blockDim.x) {
    const int query = i / (D / 2), pair = i % (D / 2);
    const auto at = [&](int w, int column) {
      return reinterpret_cast<const float2*>(shared + w * stride)[(query * (D + 2) + column) / 2];
    };
    float top = kUnseen, sum = 0;
    float2 total = {0, 0};
#pragma unroll
    for (int w = 0; w < shape.warps; ++w) top = fmaxf(top, at(w, D).x);
#pragma unroll
    for (int w = 0; w < shape.warps; ++w) {
      const float2 end = at(w, D), x = at(w, 2 * pair);
      const float share = exp2_fast(end.x - top);
      sum += share * end.y;
      total.x += share * x.x;
      total.y += share * x.y;
    }
    auto* to = reinterpret_cast<float2*>(part + query * shape.apart);
    to[pair] = total;
    if (pair == 0) to[D / 2] = {top, sum};
  }
  __syncthreads();
}

/// Where a head's result goes.
struct HeadOutput {
  float* out;      // [queries, D]
  float* log_sum;  // [queries] or null
  int queries;
  const float* sinks;  // [queries] or null: they join here, once, whoever summed the parts
};

template <int D>
__device__ inline void write_nothing_seen(const HeadOutput& to) {
  for (int i = threadIdx.x; i < to.queries * D; i += blockDim.x) to.out[i] = 0;
  if (to.log_sum && threadIdx.x < to.queries)
    to.log_sum[threadIdx.x] = to.sinks ? to.sinks[threadIdx.x] : -INFINITY;
}

/// A head's parts, side by side for each of its queries: at distances known when this is compiled,
/// which asks for twenty parts with one address.
struct HeadParts {
  const float* first;  // [queries, count, D + 2]
  int apart, count;    // apart: as in MergeShape
};

/// The result from a head's parts. Shared memory: kQueries count floats. All threads call it.
template <int D>
__device__ inline void merge_parts(const HeadOutput& to, const HeadParts& parts, float* shared) {
  // Parts whose values are asked for together with the maxima: one wait instead of two.
  constexpr int kTogether = 20;
  float* shares = shared;  // [count, kQueries]
  const int pairs = to.queries * D / 2, count = parts.count;
  constexpr int kRow = D / 2 + 1;
  const auto rows_of = [&](int query) {
    return reinterpret_cast<const float2*>(parts.first + query * parts.apart);
  };
  const auto pairs_of = [&](int i) { return rows_of(i / (D / 2)) + i % (D / 2); };
  float2 together[kTogether];
  const auto ask = [&](const float2* from, int n) {
#pragma unroll
    for (int w = 0; w < kTogether; ++w) together[w] = w < n ? __ldcg(from + w * kRow) : float2{};
  };
  const int own = static_cast<int>(threadIdx.x);
  ask(pairs_of(own), own < pairs ? count : 0);
  // A warp per query: its parts' shares of the whole, lanes by parts.
  const int lane = threadIdx.x % kWarp;
  for (int query = threadIdx.x / kWarp; query < to.queries; query += blockDim.x / kWarp) {
    const float2* ends = rows_of(query) + D / 2;
    const auto end_of = [&](int w) { return __ldcg(ends + w * kRow); };
    float2 end = {kUnseen, 0};  // of this lane's first part, mostly its only one
    if (lane < count) end = end_of(lane);
    float top = end.x;
    for (int w = lane + kWarp; w < count; w += kWarp) top = fmaxf(top, end_of(w).x);
#pragma unroll
    for (int d = kWarp / 2; d > 0; d /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
    if (to.sinks) top = fmaxf(top, sink_to_log2(to.sinks[query]));
    const float first = exp2_fast(end.x - top);
    float sum = first * end.y;
    for (int w = lane + kWarp; w < count; w += kWarp) {
      const float2 other = end_of(w);
      const float share = exp2_fast(other.x - top);
      shares[w * kQueries + query] = share;
      sum += share * other.y;
    }
#pragma unroll
    for (int d = kWarp / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
    if (to.sinks) sum += exp2_fast(sink_to_log2(to.sinks[query]) - top);
    const float scale = sum > 0 ? 1 / sum : 0;
    if (lane < count) shares[lane * kQueries + query] = first * scale;
    for (int w = lane + kWarp; w < count; w += kWarp) shares[w * kQueries + query] *= scale;
    if (to.log_sum && lane == 0) {
      to.log_sum[query] = sum > 0 ? (top + log2f(sum)) / kLog2e : -INFINITY;
    }
  }
  __syncthreads();
  for (int i = own; i < pairs; i += blockDim.x) {
    const float2* from = pairs_of(i);
    if (i != own) ask(from, count);
    const int query = i / (D / 2);
    float2 total = {0, 0};
    const auto add = [&](int w, float2 v) {
      const float share = shares[w * kQueries + query];
      total.x += share * v.x;
      total.y += share * v.y;
    };
#pragma unroll
    for (int w = 0; w < kTogether; ++w) {
      if (w < count) add(w, together[w]);
    }
#pragma unroll 8
    for (int w = kTogether; w < count; ++w) add(w, __ldcg(from + w * kRow));
    reinterpret_cast<float2*>(to.out)[i] = total;
  }
  __syncthreads();
}

}  // namespace pith::cuda
