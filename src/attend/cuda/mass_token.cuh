#pragma once
// The attention mass of one query over dense rows and, where a codec brings a reader of its keys,
// coded ones (see mass.h).

#include "attend/cuda/decode_groups.h"
#include "attend/cuda/mass.h"
#include "attend/cuda/running.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {

inline constexpr int kTokenThreads = 256;
inline constexpr int kTokenBlocks = 96, kLeastTokenBlocks = 4;  // a KV head; in company
inline constexpr int kRowsALane = 2;                            // on their way together

struct TokenParams {
  const void* q;
  const float* log_sum;
  const MassTarget* target;
  int group;
};
/// What a kernel is launched with, of one call or, along z, of several.
struct PlacedMass : PlacedParams {
  size_t target_at;
  int group;

  __device__ TokenParams here() const {
    const DecodePlace& own = places ? places[blockIdx.z] : place;
    return {own.q, own.log_sum,
            reinterpret_cast<const MassTarget*>(static_cast<const char*>(own.note) + target_at),
            group};
  }
};
inline PlacedMass placed_mass(const TokenMass& call, const MassTarget* target) {
  PlacedMass placed{};
  placed.place.q = call.q;
  placed.place.log_sum = const_cast<float*>(call.log_sum);
  placed.place.note = target;
  placed.group = call.shape.query_heads / call.shape.kv_heads;
  return placed;
}
/// Now, or with others like it. Grid: heads, blocks.
template <class Params>
void launch_mass(void (*kernel)(Params), const LaunchShape& shape, Params params,
                 const TokenMass& mass, cudaStream_t stream) {
  constexpr const char* kWhat = "attention mass";
  DecodeGroups* groups = mass.company.groups;
  if (!groups) return launch_early(kernel, shape, params, stream, kWhat);
  const DecodeGroups::Call call{late_kernel(kernel), kWhat,    shape,
                                mass.company.place,  &dim3::z, kLeastTokenBlocks};
  if constexpr (std::is_base_of_v<PlacedParams, Params>) {
    params.target_at = mass.target_at;
    groups->add(call, params);
  } else {
    groups->add_alone(call, params);
  }
}

inline constexpr int kTogether = 4;  // queries, while a coded row is at hand: a number of each

__device__ inline void add_times(float4& sum, const float4& x, float factor) {
  sum.x += x.x * factor;
  sum.y += x.y * factor;
  sum.z += x.z * factor;
  sum.w += x.w * factor;
}
/// The probabilities that queries first, ... of a head give a row; `scores` are to base 2.
__device__ inline float sum_of_four(const TokenParams& p, int head, int first,
                                    const float4& scores) {
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kTogether; ++j) {
    const int h = first + j;
    if (h >= p.group) break;
    const float log_sum = p.log_sum[head * p.group + h] * kLog2e;
    sum += exp2_fast(reinterpret_cast<const float*>(&scores)[j] - log_sum);
  }
  return sum;
}

/// Where dense row `row` stands in the mass.
__device__ inline int mass_index(const MassTarget& target, int row) {
  return row < target.coded_from ? row : row + target.coded;
}

template <class T>
__device__ inline void widen(float (&to)[8], const uint4& from) {
#pragma unroll
  for (int i = 0; i < 8; ++i) to[i] = to_float(reinterpret_cast<const T*>(&from)[i]);
}

/// Rows of one KV head; D / 8 lanes a row. Alone, all of a few thousand rows are asked for at once.
template <class T, int D>
__device__ inline void add_dense_mass(const TokenParams& p, const MassTarget& target) {
  constexpr int kLanes = D / 8, kRowsAtOnce = kRowsALane * kTokenThreads / kLanes;
  const int head = blockIdx.x, lane = threadIdx.x % kLanes;
  const auto* q = reinterpret_cast<const uint4*>(static_cast<const T*>(p.q) +
                                                 static_cast<size_t>(head) * p.group * D) +
                  lane;
  const float* log_sums = p.log_sum + head * p.group;
  const float scale = kLog2e * rsqrtf(static_cast<float>(D));
  const T* keys = static_cast<const T*>(target.keys) + target.heads.at(head, target.head_stride, D);
  float* mass = target.mass + target.mass_at(head);
  const int rows = target.count(head);
  for (int first = blockIdx.y * kRowsAtOnce; first < rows; first += kRowsAtOnce * gridDim.y) {
    const int own = first + static_cast<int>(threadIdx.x) / kLanes * kRowsALane;
    uint4 raw[kRowsALane];
    float k[kRowsALane][8], sum[kRowsALane] = {};
#pragma unroll
    for (int i = 0; i < kRowsALane; ++i) {
      const auto row = static_cast<size_t>(min(own + i, rows - 1));
      raw[i] = *(reinterpret_cast<const uint4*>(keys + row * D) + lane);
    }
#pragma unroll
    for (int i = 0; i < kRowsALane; ++i) widen<T>(k[i], raw[i]);
#pragma unroll 4
    for (int h = 0; h < p.group; ++h) {
      float query[8];
      widen<T>(query, q[h * kLanes]);
      const float log_sum = log_sums[h] * kLog2e;
#pragma unroll
      for (int i = 0; i < kRowsALane; ++i) {
        float score = 0;
#pragma unroll
        for (int j = 0; j < 8; ++j) score += k[i][j] * query[j];
#pragma unroll
        for (int d = kLanes / 2; d > 0; d /= 2) score += __shfl_xor_sync(~0u, score, d);
        sum[i] += exp2_fast(score * scale - log_sum);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsALane; ++i) {
      const int row = own + i;
      if (lane == i && row < rows) {
        const int at = mass_index(target, row);
        mass[at] = at < target.known ? mass[at] + sum[i] : sum[i];
      }
    }
  }
}

/// A reader of coded keys: none. Others are in their methods' folders.
struct NoCodedMass {
  template <class T, int D>
  static __device__ void add(const TokenParams&, const MassTarget&, float*) {}
  static size_t shared_bytes(int /*group*/, int /*dim*/) { return 0; }
};

template <class T, int D, class Coded>
__global__ void __launch_bounds__(kTokenThreads)
    token_mass_kernel(const __grid_constant__ PlacedMass placed) {
  auto* shared_queries = launched_shared<float>();
  let_successor_start();
  const TokenParams p = placed.here();
  const MassTarget target = *p.target;  // there since the step began
  wait_for_predecessor();
  add_dense_mass<T, D>(p, target);
  Coded::template add<T, D>(p, target, shared_queries);
}

template <class T, int D, class Coded>
void launch_token(const TokenMass& call, const MassTarget* target, cudaStream_t stream) {
  const int group = call.shape.query_heads / call.shape.kv_heads;
  const LaunchShape shape{dim3(call.shape.kv_heads, kTokenBlocks), dim3(kTokenThreads),
                          Coded::shared_bytes(group, D)};
  launch_mass(token_mass_kernel<T, D, Coded>, shape, placed_mass(call, target), call, stream);
}

}  // namespace pith::cuda
