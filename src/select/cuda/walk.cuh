#pragma once
// The sequential part of a halving: one warp goes through a tile of 64 rows whose kernel entries
// and whose sums over all earlier rows are ready. About 40 cycles a step, most of them one shuffle.

#include "kernels/cuda/mma.cuh"

namespace pith::cuda {

inline constexpr int kWalkTile = 64;
inline constexpr int kWalkThreads = 256;
inline constexpr int kDiagonal = kWalkTile + 2;  // floats a row of the tile's kernel takes

struct WalkState {
  float threshold;  // 0: always the better sign
  float widest;     // pairs: max sqrt(D(a, a)) so far
  int failures;
};
struct WalkTile {
  const float* kernel;  // [64, stride]
  const float* sums;    // [2, 64] two parts; null: nothing came before
  float* signs;         // [64] out
  int first, count;     // rows of the run that it holds
  int stride = kDiagonal;

  __device__ float sum(int row) const { return sums ? sums[row] + sums[kWalkTile + row] : 0; }
};

/// Kernel halving of at most 32 pairs, lane b has pair b. acc: its sum over all earlier pairs.
/// difference(b): D(b, own pair). draw(own): the pair's uniform number. Returns whether the own
/// pair swaps its rows.
template <class Difference, class Draw>
__device__ inline bool walk_differences(WalkState& state, float acc, int pairs, bool very_first,
                                        const Difference& difference, const Draw& draw) {
  const int lane = threadIdx.x % kWarp;
  const float width = lane < pairs ? sqrtf(fmaxf(difference(lane), 0.0f)) : 0.0f;
  float widest = fmaxf(width, state.widest);
#pragma unroll
  for (int d = 1; d < kWarp; d *= 2) {
    const float before = __shfl_up_sync(~0u, widest, d);
    if (lane >= d) widest = fmaxf(widest, before);
  }
  state.widest = __shfl_sync(~0u, widest, kWarp - 1);
  const float c = state.threshold * width * widest;
  const float u = c > 0 ? draw() : 0.0f;
  bool swapped = false;
  int failures = 0;
  for (int b = 0; b < pairs; ++b) {
    const float d = difference(b);
    bool swap = c > 0 ? u < 0.5f + acc / (2 * c) : acc > 0;
    swap &= !(very_first && lane == 0);  // the first pair of all has nothing to go by
    const bool failed = c > 0 && fabsf(acc) > c;
    if (lane == b) {
      swapped = swap;
      failures = failed;
    }
    acc += __shfl_sync(~0u, swap, b) ? -d : d;
  }
  state.failures += __popc(__ballot_sync(~0u, failures));
  return swapped;
}

/// Kernel halving. Signs are +1 for a pair's first row if it stays, -1 else.
template <class Draw>
__device__ inline void walk_pairs(WalkState& state, const WalkTile& t, const Draw& draw) {
  const int lane = threadIdx.x % kWarp, pairs = t.count / 2, mine = min(lane, pairs - 1);
  const auto difference = [&](int b) {
    const float2 one = *reinterpret_cast<const float2*>(t.kernel + 2 * b * t.stride + 2 * mine);
    const float2 two =
        *reinterpret_cast<const float2*>(t.kernel + (2 * b + 1) * t.stride + 2 * mine);
    return (one.x - one.y) - (two.x - two.y);
  };
  const bool swapped =
      walk_differences(state, t.sum(2 * mine) - t.sum(2 * mine + 1), pairs, t.first == 0,
                       difference, [&] { return draw(t.first + 2 * mine); });
  if (lane < pairs) {
    t.signs[2 * lane] = swapped ? -1.0f : 1.0f;
    t.signs[2 * lane + 1] = swapped ? 1.0f : -1.0f;
  }
  __syncwarp();
}

/// SoftmaxBalance: lane b has rows 2b and 2b + 1.
template <class Draw>
__device__ inline void walk_rows(WalkState& state, const WalkTile& t, bool flip, const Draw& draw) {
  const int lane = threadIdx.x % kWarp;
  const float limit = state.threshold;
  float y[2], u[2] = {0, 0};
  bool up[2] = {false, false};
  int failures = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    y[i] = t.sum(2 * lane + i);
    if (limit > 0 && 2 * lane + i < t.count) u[i] = draw(t.first + 2 * lane + i);
  }
  for (int b = 0; 2 * b < t.count; ++b) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float2 d =
          *reinterpret_cast<const float2*>(t.kernel + (2 * b + i) * kDiagonal + 2 * lane);
      // With no threshold the first row has nothing to go by: the run's coin decides.
      const bool rise =
          limit > 0 ? u[i] < 0.5f - y[i] / (2 * limit) : y[i] < 0 || (y[i] == 0 && flip);
      if (lane == b) {
        up[i] = rise;
        failures += limit > 0 && fabsf(y[i]) > limit;
      }
      const float sign = __shfl_sync(~0u, rise, b) ? 1.0f : -1.0f;
      y[0] += sign * d.x;
      y[1] += sign * d.y;
    }
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (2 * lane + i < t.count) t.signs[2 * lane + i] = up[i] ? 1.0f : -1.0f;
  }
  state.failures += __reduce_add_sync(~0u, failures);
  __syncwarp();
}

}  // namespace pith::cuda
