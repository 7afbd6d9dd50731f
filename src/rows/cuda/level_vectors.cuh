#pragma once
// Rows along vectors of their head (LevelVectors): levels of 16 rows become operands of a product
// with the vectors on the tensor cores, whose sums get each row's scale.
//
// Cost of 16 rows: 16 R codes, about 8 instructions of a lane for 32 of them, and 16 R D
// multiply-adds; the vectors, 2 R D bytes, come from cache. At D = 256 codes are read twice: sums
// of all channels have no room in registers.

#include "rows/cuda/level_lane.cuh"
#include "rows/tight_rows.h"

namespace pith::cuda {

inline constexpr int kBuiltRows = 16;  ///< at a time, by a warp

/// levels [LevelVectors::kLevels] in shared memory; all threads of the block call it.
__device__ inline void fill_levels(__half* levels, const LevelVectors& v) {
  for (int i = threadIdx.x; i < LevelVectors::kLevels; i += blockDim.x)
    levels[i] = __float2half_rn(v.levels[i]);
}

/// A block's codes and its scales.
struct VectorBlock {
  const char *codes, *scales;
};

template <int D>
struct VectorRows {
  static constexpr int kChannels = D < 128 ? D : 128;  // at a time

  const PlacedSide& f;
  const __half* levels;  // see fill_levels()
  int head;

  /// Levels of two neighbouring coordinates of the row that begins at bit `row`.
  __device__ uint32_t levels_at(const uint32_t* words, int row, uint2 places) const {
    const auto level = [&](uint32_t place) {
      const int bit = row + static_cast<int>(place & 0xffff), width = static_cast<int>(place >> 16);
      const int word = bit / 32, next = bit % 32 + width > 32;
      const uint32_t mask = (1u << width) - 1;
      return levels[mask + (__funnelshift_r(words[word], words[word + next], bit % 32) & mask)];
    };
    const __half2 two{level(places.x), level(places.y)};
    return *reinterpret_cast<const uint32_t*>(&two);
  }
  static __device__ float scale_of(char stored) {
    return __half2float(__ushort_as_half(half_of_tight(static_cast<uint8_t>(stored))));
  }
  /// Channels first, ... of a row <- its sums of four tiles: each tile has two of this lane's
  /// eight.
  __device__ void store(__half* to, const float (&x)[8], int first, float scale) const {
    float y[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool mean = f.means && !f.turns;
      y[i] = x[i] * scale + (mean ? head_mean<D>(f, head, first + i) : 0);
    }
    *reinterpret_cast<uint4*>(to + first) =
        make_uint4(pack<__half>(y[0], y[1]), pack<__half>(y[2], y[3]), pack<__half>(y[4], y[5]),
                   pack<__half>(y[6], y[7]));
  }

  /// to [16, stride] <- rows first, ... of a block, whose means RoPE's turn adds, if there is one.
  __device__ void build(__half* to, int stride, const VectorBlock& block, int first) const {
    const LevelVectors& v = f.along;
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4, count = v.counts[head];
    const auto* words = reinterpret_cast<const uint32_t*>(block.codes);
    const auto* places = reinterpret_cast<const uint2*>(v.places + head * v.room) + c;
    const uint32_t* vectors =
        v.vectors + static_cast<size_t>(head) * v.room / 2 * D + c * D + 4 * r;
    const int upper = 8 * v.row_bytes * (first + r), lower = upper + 8 * v.row_bytes * 8;
    const float scales[2] = {scale_of(block.scales[first + r]),
                             scale_of(block.scales[first + r + 8])};
#pragma unroll 1
    for (int channel = 0; channel < D; channel += kChannels) {
      float sum[kChannels / 8][4] = {};
#pragma unroll 1
      for (int k = 0; k < count; k += 16) {
        const uint2 near = places[k / 2], far = places[k / 2 + 4];
        const uint32_t a[4] = {levels_at(words, upper, near), levels_at(words, lower, near),
                               levels_at(words, upper, far), levels_at(words, lower, far)};
        const uint32_t* rows = vectors + k / 2 * D + channel;
#pragma unroll
        for (int tile = 0; tile < kChannels / 8; tile += 4) {
          const uint4 b = *reinterpret_cast<const uint4*>(rows + 8 * tile);
          const uint4 d = *reinterpret_cast<const uint4*>(rows + 4 * D + 8 * tile);
          mma<__half>(sum[tile], a[0], a[1], a[2], a[3], b.x, d.x);
          mma<__half>(sum[tile + 1], a[0], a[1], a[2], a[3], b.y, d.y);
          mma<__half>(sum[tile + 2], a[0], a[1], a[2], a[3], b.z, d.z);
          mma<__half>(sum[tile + 3], a[0], a[1], a[2], a[3], b.w, d.w);
        }
      }
#pragma unroll
      for (int tile = 0; tile < kChannels / 8; tile += 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float x[8];
#pragma unroll
          for (int i = 0; i < 8; ++i) x[i] = sum[tile + i % 4][2 * half + i / 4];
          store(to + (r + 8 * half) * stride, x, channel + 8 * tile + 8 * c, scales[half]);
        }
      }
    }
  }
};

}  // namespace pith::cuda
