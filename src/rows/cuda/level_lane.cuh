#pragma once
// A warp's lanes and the channels of a row: each lane has D / 32 of them, in pairs that RoPE turns
// together, so that coding, building, turning and the Walsh-Hadamard transform of a row need no
// memory.

#include <type_traits>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/turn.cuh"
#include "rows/cuda/level_format.h"

namespace pith::cuda {

template <int D>
struct LevelLane {
  static constexpr int kMine = D / 32;  // channels of a lane
  static constexpr int kHalf = kMine / 2, kPairs = kMine / 2;

  /// Channel e of this lane; e + kHalf is the other one of its RoPE pair.
  static __device__ int channel(int e) {
    const int lane = threadIdx.x % kWarp;
    return e / kHalf * (D / 2) + kHalf * lane + e % kHalf;
  }
  /// The group of 32 channels that it lies in.
  static __device__ int group(int e) { return channel(e) / 32; }

  /// The lane's pair p of a row of numbers.
  static __device__ __half2 pair_of(const __half* row, int p) {
    if constexpr (kPairs > 1) {
      return *reinterpret_cast<const __half2*>(row + channel(2 * p));
    } else {
      return {row[channel(0)], row[channel(1)]};
    }
  }
  static __device__ void put_pair(__half* row, int p, __half2 x) {
    if constexpr (kPairs > 1) {
      *reinterpret_cast<__half2*>(row + channel(2 * p)) = x;
    } else {
      row[channel(0)] = x.x;
      row[channel(1)] = x.y;
    }
  }

  /// The lane's channels of a row, from both of the halves that RoPE pairs.
  static __device__ void load_halves(float (&a)[kHalf], float (&b)[kHalf], const __half* row) {
    if constexpr (kPairs > 1) {
#pragma unroll
      for (int p = 0; p < kPairs / 2; ++p) {
        const float2 x = __half22float2(pair_of(row, p));
        const float2 y = __half22float2(pair_of(row, kPairs / 2 + p));
        a[2 * p] = x.x, a[2 * p + 1] = x.y, b[2 * p] = y.x, b[2 * p + 1] = y.y;
      }
    } else {
      const float2 x = __half22float2(pair_of(row, 0));
      a[0] = x.x, b[0] = x.y;
    }
  }
  static __device__ void store_halves(__half* row, const float (&a)[kHalf],
                                      const float (&b)[kHalf]) {
    if constexpr (kPairs > 1) {
#pragma unroll
      for (int p = 0; p < kPairs / 2; ++p) {
        put_pair(row, p, __floats2half2_rn(a[2 * p], a[2 * p + 1]));
        put_pair(row, kPairs / 2 + p, __floats2half2_rn(b[2 * p], b[2 * p + 1]));
      }
    } else {
      put_pair(row, 0, __floats2half2_rn(a[0], b[0]));
    }
  }

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
    constexpr float kScale = D == 64 ? 0.125f : D == 128 ? 0.08838834764831845f : 0.0625f;
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
    using Codes = std::conditional_t<(kMine > 4), uint64_t, uint32_t>;  // codes of up to 8 bits
    Codes codes = 0;
#pragma unroll
    for (int e = 0; e < kMine; ++e) codes |= static_cast<Codes>(code[e]) << (e * bits);
    const int at = static_cast<int>(threadIdx.x % kWarp) * kMine * bits, word = at / 32;
    atomicOr(words + word, static_cast<uint32_t>(codes << (at % 32)));
    if (at % 32 + kMine * bits > 32) {
      atomicOr(words + word + 1, static_cast<uint32_t>(codes >> (32 - at % 32)));
    }
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

/// The mean that was taken off the head's keys before RoPE.
template <int D>
__device__ inline float head_mean(const LevelSide& f, int head, int channel) {
  return __half2float(reinterpret_cast<const __half*>(f.means)[head * D + channel]);
}

/// turned [8, D] <- the rows of q, transformed as keys are; each warp of the block takes some.
/// `flips`: see flips_of().
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

/// The transform of all rows of a block, which is its own inverse; all threads call it, after a
/// barrier.
template <int D>
__device__ inline void rotate_block(float (&rows)[kBlockRows][D + 1]) {
  using Lane = LevelLane<D>;
  for (int row = threadIdx.x / kWarp; row < kBlockRows; row += blockDim.x / kWarp) {
    float x[Lane::kMine];
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e) x[e] = rows[row][Lane::channel(e)];
    Lane::hadamard(x);
#pragma unroll
    for (int e = 0; e < Lane::kMine; ++e) rows[row][Lane::channel(e)] = x[e];
  }
  __syncthreads();
}

}  // namespace pith::cuda
