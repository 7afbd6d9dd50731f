#pragma once
// Rows of levels back from their codes, a warp a row, lanes by channels (level_lane.cuh).
// Cost a row and lane: its codes' two words, a look-up and a multiply-add a number; what products,
// numbers apart and turns ask for beside.

#include "attend/cuda/level_lane.cuh"

namespace pith::cuda {

/// One block's parts, wherever they are.
struct LevelBlock {
  const char *codes, *side, *right;  // right [r, D] f16, whole
};

template <int D>
struct LevelBuilder {
  using Lane = LevelLane<D>;
  static constexpr int kMine = Lane::kMine, kHalf = Lane::kHalf;

  const LevelSide& f;
  float level;                      // number lane % 16 of the table
  float scale[kMine], low[kMine];   // of the row at hand, or the block, or the head
  float2 turn[kHalf], step[kHalf];  // of the row at hand, and from a row to the next

  __device__ LevelBuilder(const LevelSide& format, int head) : f(format) {
    const int lane = threadIdx.x % kWarp;
    level = f.head_levels ? f.head_levels[head * LevelSide::kMostLevels + lane % 16]
                          : f.levels[lane % 16];
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      low[e] = 0;
      if (f.scale != LevelScale::kHeadChannel) continue;
      const auto* ranges = reinterpret_cast<const __half*>(f.ranges) + head * 2 * D;
      low[e] = __half2float(ranges[Lane::channel(e)]);
      scale[e] = __half2float(ranges[D + Lane::channel(e)]);
    }
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      if (f.turns) step[i] = turn_at(f.turns[Lane::channel(i)], 1);
    }
  }

  static __device__ const __half* halves(const char* bytes) {
    return reinterpret_cast<const __half*>(bytes);
  }

  /// Before the first of rows that follow each other; `position`: its own.
  __device__ void begin(const LevelBlock& block, int64_t position) {
    if (f.scale == LevelScale::kBlockChannel) {
      const __half* scales = halves(block.side);
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        scale[e] = __half2float(scales[Lane::channel(e)]);
        if (f.minima) low[e] = __half2float(scales[D + Lane::channel(e)]);
      }
    }
    if (!f.turns) return;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) turn[i] = turn_at(f.turns[Lane::channel(i)], position);
  }

  __device__ void read_scales(const LevelBlock& block, int row) {
    const __half *scales = halves(block.side), *minima = halves(block.side + f.minima_at(D));
    if (f.scale == LevelScale::kRow) {
      const float s = __half2float(scales[row]), m = f.minima ? __half2float(minima[row]) : 0;
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        scale[e] = s;
        low[e] = m;
      }
    } else if (f.scale == LevelScale::kRowGroup) {
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        const int at = row * (D / 32) + Lane::group(e);
        scale[e] = __half2float(scales[at]);
        if (f.minima) low[e] = __half2float(minima[at]);
      }
    }
  }

  /// Row `row` of a block, without its turn. All of a block's rows have the same low and scale, or
  /// each its own.
  __device__ void row(float (&x)[kMine], const LevelBlock& block, int row) {
    read_scales(block, row);
    const auto* words = reinterpret_cast<const uint32_t*>(block.codes + row * (D * f.bits / 8));
    const uint32_t codes = Lane::take(words, f.bits), mask = (1u << f.bits) - 1;
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      const int code = static_cast<int>(codes >> (e * f.bits) & mask);
      const float number = f.choice == LevelChoice::kEven ? static_cast<float>(code - f.zero)
                                                          : __shfl_sync(~0u, level, code);
      x[e] = fmaf(scale[e], number, low[e]);
    }
    for (int j = 0; j < f.rank; ++j) {
      const float left =
          f.centred ? 1 : __half2float(halves(block.side + f.left_at(D))[row * f.rank + j]);
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        x[e] = fmaf(left, __half2float(halves(block.right)[j * D + Lane::channel(e)]), x[e]);
      }
    }
    put_apart(x, block, row);
  }
  __device__ void put_apart(float (&x)[kMine], const LevelBlock& block, int row) const {
    for (int i = row * f.apart; i < (row + 1) * f.apart; ++i) {
      const int channel = static_cast<uint8_t>(block.side[f.channels_at(D) + i]);
      if (Lane::owner(channel) != static_cast<int>(threadIdx.x % kWarp)) continue;
      const float number = __half2float(halves(block.side + f.apart_at(D))[i]);
      const int mine = Lane::element(channel);
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        if (e == mine) x[e] = f.missed ? x[e] + number : number;
      }
    }
  }
  /// The row at hand to its position, and on to the next one's.
  __device__ void turn_row(float (&x)[kMine]) {
    if (!f.turns) return;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float a = x[i], b = x[i + kHalf];
      const float2 t = turn[i], s = step[i];
      x[i] = a * t.x - b * t.y;
      x[i + kHalf] = a * t.y + b * t.x;
      turn[i] = {t.x * s.x - t.y * s.y, t.x * s.y + t.y * s.x};
    }
  }
};

}  // namespace pith::cuda
