#pragma once
// How a warp chooses the codes of a row whose levels lie around 0 and whose scale is its own, as
// PlaneRows does on the CPU (rows/cpu/plane_rows.h).

#include "rows/cuda/level_lane.cuh"
#include "rows/tight_rows.h"

namespace pith::cuda {

template <int D>
struct RowLevels {
  using Lane = LevelLane<D>;
  static constexpr int kMine = Lane::kMine;

  const PlacedSide& f;

  static __device__ float square_of(const float (&x)[kMine]) {
    float square = 0;
#pragma unroll
    for (int e = 0; e < kMine; ++e) square += x[e] * x[e];
    return sum_of_warp(square);
  }

  /// Sign by sign of what is left, in units of the deviation. Returns the scale that fits best, or
  /// that keeps the row's length along itself.
  __device__ float choose_signs(int (&code)[kMine], const float (&x)[kMine]) const {
    const float square = square_of(x), deviation = sqrtf(square / D);
    float along = 0, length = 0;
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      float level = 0;
      code[e] = 0;
      for (int i = 0; i < f.bits; ++i) {
        // The weight of sign i: half of what setting its bit adds.
        const int bit = 1 << (f.bits - 1 - i);
        const float weight = (f.levels[bit] - f.levels[0]) / 2;
        const bool more = x[e] >= level * deviation;
        level += more ? weight : -weight;
        code[e] |= more ? bit : 0;
      }
      level = f.levels[code[e]];
      along += x[e] * level;
      length += level * level;
    }
    along = sum_of_warp(along);
    const float fit = along / sum_of_warp(length);
    return f.whole_rows && along > 0 ? fminf(square / along, 2 * fit) : fit;
  }

  /// Codes by thresholds times `unit`. Returns what x has along their levels, and these levels'
  /// own squared length.
  __device__ float2 take_levels(int (&code)[kMine], const float (&x)[kMine], float unit) const {
    const int half = 1 << (f.bits - 1);
    float size[kMine];
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      code[e] = 0;
      size[e] = f.levels[half];
    }
    for (int i = 1; i < half; ++i) {
      const float level = f.levels[half + i];
      const float threshold = (f.levels[half + i - 1] + level) * unit;
#pragma unroll
      for (int e = 0; e < kMine; ++e) {
        if (2 * fabsf(x[e]) < threshold) continue;
        code[e] = i;
        size[e] = level;
      }
    }
    float along = 0, length = 0;
#pragma unroll
    for (int e = 0; e < kMine; ++e) {
      along += fabsf(x[e]) * size[e];
      length += size[e] * size[e];
      code[e] = x[e] >= 0 ? half + code[e] : half - 1 - code[e];
    }
    return {sum_of_warp(along), sum_of_warp(length)};
  }
  static __device__ float scale_of(uint8_t stored) {
    return __half2float(__ushort_as_half(half_of_tight(stored)));
  }
  /// Returns the scale as it is stored.
  __device__ uint8_t choose_tight(int (&code)[kMine], const float (&x)[kMine]) const {
    const float square = square_of(x);
    const float2 first = take_levels(code, x, sqrtf(square / D));
    const float fit = first.x / first.y;
    const float whole = first.x > 0 ? fminf(square / first.x, 2 * fit) : fit;
    const uint8_t stored = tight_of_half(__half_as_ushort(__float2half_rn(whole)));
    const float scale = scale_of(stored);
    const auto missed = [&](float moved) {
      return scale * take_levels(code, x, scale * moved).x - square;
    };
    float low = kNearestThresholds, high = kFarthestThresholds;
    for (int i = 0; i < kThresholdHalvings; ++i) {
      const float middle = 0.5f * (low + high);
      (missed(middle) > 0 ? low : high) = middle;
    }
    const bool lower = fabsf(missed(low)) < fabsf(missed(high));
    take_levels(code, x, scale * (lower ? low : high));
    return stored;
  }
};

}  // namespace pith::cuda
