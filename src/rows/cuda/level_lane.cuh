#pragma once
// A warp's lanes and the channels of a row: each lane has D / 32 of them, in pairs that RoPE turns
// together, so that coding, building, turning and the Walsh-Hadamard transform of a row need no
// memory.

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/turn.cuh"
#include "rows/cuda/level_format.h"

namespace pith::cuda {

template <int D>
struct LevelLane {
  static constexpr int kMine = D / 32;  // channels of a lane
  static constexpr int kHalf = kMine / 2;

  /// Channel e of this lane; e + kHalf is the other one of its RoPE pair.
  static __device__ int channel(int e) {
    const int lane = threadIdx.x % kWarp;
    return e / kHalf * (D / 2) + kHalf * lane + e % kHalf;
  }
  /// The group of 32 channels that it lies in.
  static __device__ int group(int e) { return channel(e) / 32; }

  /// The orthonormal Walsh-Hadamard transform of the warp's row.
  static __device__ void hadamard(float (&x)[kMine]) {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int bit = 1; bit < kMine; bit *= 2) {
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        if (e & bit) continue;
        const float a = x[e], b = x[e | bit];
        x[e] = a + b;
        x[e | bit] = a - b;
      }
    }
#pragma unroll
    for (int mask = 1; mask < kWarp; mask *= 2) {
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const float other = __shfl_xor_sync(~0u, x[e], mask);
        x[e] = lane & mask ? other - x[e] : x[e] + other;
      }
    }
    constexpr float kScale = D == 64 ? 0.125f : 0.08838834764831845f;
#pragma unroll
    for (int e = 0; e < kMine; ++e) x[e] *= kScale;
  }

  /// The same after the signs of channels in `flips` [D bits] were changed, and back.
  static __device__ void turn(float (&x)[kMine], const uint32_t* flips) {
    flip(x, flips_of(flips));
    hadamard(x);
  }
  static __device__ void turn_back(float (&x)[kMine], const uint32_t* flips) {
    hadamard(x);
    flip(x, flips_of(flips));
  }
  /// Bit e: this lane's channel e is one of `flips`.
  static __device__ uint32_t flips_of(const uint32_t* flips) {
    uint32_t mine = 0;
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      mine |= (flips[channel(e) / 32] >> (channel(e) % 32) & 1) << e;
    }
    return mine;
  }
  static __device__ void flip(float (&x)[kMine], uint32_t mine) {
#pragma unroll
    for (int e = 0; e < kMine; ++e) x[e] = mine >> e & 1 ? -x[e] : x[e];
  }

  /// The lane's codes, one above the other, into a row that begins at `words` and was zeroed.
  static __device__ void put(uint32_t* words, int bits, const int (&code)[kMine]) {
    uint32_t codes = 0;
#pragma unroll
    for (int e = 0; e < kMine; ++e) codes |= static_cast<uint32_t>(code[e]) << (e * bits);
    const int at = static_cast<int>(threadIdx.x % kWarp) * kMine * bits, word = at / 32;
    atomicOr(words + word, codes << (at % 32));
    if (at % 32 + kMine * bits > 32) atomicOr(words + word + 1, codes >> (32 - at % 32));
  }

  /// The same into fragments (grouped_layout.h) of a block that was zeroed.
  template <int kBits>
  static __device__ void put_fragments(uint32_t* block, const LevelSide& f, int row,
                                       const int (&code)[kMine]) {
    const bool keys = f.order == LevelOrder::kKeyFragments;
    for (int i = 0; i < layout::code_parts(kBits, f.looked_up()); ++i) {
      const CodePart part = layout::code_part(kBits, i, f.looked_up());
      uint32_t* words = block + layout::words_before(kBits, i, D);
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const CodePlace at = layout::code_fragment(keys, row, channel(e), D, part);
        atomicOr(words + at.word, (code[e] >> part.shift & ((1u << part.width) - 1)) << at.bit);
      }
    }
  }
};

/// What stands off the head's keys before RoPE.
template <int D>
__device__ inline float head_mean(const LevelSide& f, int head, int channel) {
  return __half2float(reinterpret_cast<const __half*>(f.means)[head * D + channel]);
}

/// turned [8, D] <- the rows of q, turned as keys are; each warp of the block takes some. `flips`:
/// see flips_of().
template <int D>
__device__ inline void rotate_queries(float* turned, const float* q, uint32_t flips) {
  using Lane = LevelLane<D>;
  for (int query = threadIdx.x / kWarp; query < kDecodeQueries; query += blockDim.x / kWarp) {
    float x[Lane::kMine];
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e) x[e] = q[query * D + Lane::channel(e)];
    Lane::flip(x, flips);
    Lane::hadamard(x);
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e) turned[query * D + Lane::channel(e)] = x[e];
  }
}

__device__ inline float sum_of_warp(float x) {
#pragma unroll
  for (int d = kWarp / 2; d > 0; d /= 2) x += __shfl_xor_sync(~0u, x, d);
  return x;
}

}  // namespace pith::cuda
