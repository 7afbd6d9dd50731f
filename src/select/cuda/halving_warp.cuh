#pragma once
// Kernel halving of at most 32 rows by one warp. Rows go from memory to registers as both operands
// of the tensor cores, and the products of keys give their mean as well: <k_i, m> is the mean of
// row i of the Gram matrix. About 3 us per run, most of it waiting for the rows.

#include "select/cuda/halving_block.cuh"

namespace pith::cuda {

inline constexpr int kWarpRows = 32;

/// Shared memory of one warp.
struct WarpSpace {
  float kernel[kWarpRows * (kWarpRows + 2)];
  float offsets[kWarpRows];
  float signs[kWarpRows];
};

/// Lane r, c holds pieces 8 c .. of rows r + 8 i, of 128 channels at a time: more have too few
/// registers.
template <class T, int D, int kTiles>
struct WarpHalving {
  static constexpr int kPerLane = 2 * kTiles;  // rows
  static constexpr int kStride = kWarpRows + 2;
  static constexpr int kPart = D > 128 ? 128 : D, kPieces = kPart / 32;
  using Part = uint4[kPerLane][kPieces];
  const DeviceHalvingRule& rule;
  const RunRows& rows;
  WarpSpace& space;

  __device__ void load(Part& x, const char* base, int first) const {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const size_t row = rows.number(min(8 * i + r, rows.count - 1));
      const auto* from =
          reinterpret_cast<const uint4*>(base + row * rows.row_bytes) + first / 8 + c;
#pragma unroll
      for (int j = 0; j < kPieces; ++j) x[i][j] = from[4 * j];
    }
  }
  /// g += products of all pairs of rows, in C's layout.
  static __device__ void multiply(float (&g)[kTiles][kPerLane][4], const Part& x) {
#pragma unroll
    for (int j = 0; j < kPieces; ++j) {
#pragma unroll
      for (int a = 0; a < kTiles; ++a) {
        const uint4 &up = x[2 * a][j], &low = x[2 * a + 1][j];
#pragma unroll
        for (int n = 0; n < kPerLane; ++n) {
          mma<T>(g[a][n], up.x, low.x, up.y, low.y, x[n][j].x, x[n][j].y);
          mma<T>(g[a][n], up.z, low.z, up.w, low.w, x[n][j].z, x[n][j].w);
        }
      }
    }
  }
  /// Row terms of the exponents, as HalvingBlock::measure finds them.
  __device__ void find_offsets(const float (&g)[kTiles][kPerLane][4], float scale) const {
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    float along[kPerLane], own[kPerLane], all = 0, longest = 0;
    const float share = rule.centre ? 1 / static_cast<float>(rows.count) : 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      along[i] = own[i] = 0;
#pragma unroll
      for (int n = 0; n < kPerLane; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const float x = g[i / 2][n][2 * (i % 2) + e];
          const int column = 8 * n + 2 * c + e;
          if (column < rows.count) along[i] += x;
          if (column == 8 * i + r) own[i] += x;
        }
      }
      along[i] = sum_over_columns(along[i]) * share;
      own[i] = sum_over_columns(own[i]);
      if (8 * i + r < rows.count) all += along[i];
    }
    all = sum_over_rows(all) * share;  // |m|^2
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) longest = fmaxf(longest, own[i] - 2 * along[i] + all);
    longest = max_over_rows(longest);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (c == 0) space.offsets[8 * i + r] = scale * ((all - longest) / 2 - along[i]);
    }
    __syncwarp();
  }

  /// The largest entry of the values.
  static __device__ float largest(const Part& x) {
    float most = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        float v[8];
        unpack_piece<T>(v, x[i][j]);
#pragma unroll
        for (int e = 0; e < 8; ++e) most = fmaxf(most, fabsf(v[e]));
      }
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
    return most;
  }

  /// The kernel into space.kernel.
  __device__ void find_kernel() const {
    Part x;
    float g[kTiles][kPerLane][4] = {}, w[kTiles][kPerLane][4] = {}, constant = 1;
    const float scale = rule.scale * 1.4426950408889634f;
#pragma unroll
    for (int first = 0; first < D; first += kPart) {
      load(x, rows.k, first);
      multiply(g, x);
    }
    if (rule.values) load(x, rows.v, 0);
    find_offsets(g, scale);
    if (rule.values) {
      multiply(w, x);
      float entry = largest(x);
#pragma unroll
      for (int first = kPart; first < D; first += kPart) {
        load(x, rows.v, first);
        multiply(w, x);
        entry = fmaxf(entry, largest(x));
      }
      constant = rule.value_constant * entry * entry;
    }
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
#pragma unroll
    for (int a = 0; a < kTiles; ++a) {
#pragma unroll
      for (int n = 0; n < kPerLane; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int row = 16 * a + r + 8 * (e / 2), column = 8 * n + 2 * c + e % 2;
          const float power = fmaf(g[a][n][e], scale, space.offsets[row] + space.offsets[column]);
          space.kernel[row * kStride + column] = exp2_fast(power) * (w[a][n][e] + constant);
        }
      }
    }
    __syncwarp();
  }

  /// The signs of all rows into space.signs; returns the failures.
  __device__ int run(const HalvingRandom& random) const {
    find_kernel();
    const float log_size = logf(2.0f * static_cast<float>(rows.count) / rule.delta);
    WalkState state{rule.balance * (0.5f + log_size), 0, 0};
    const WalkTile tile{space.kernel, nullptr, space.signs, 0, rows.count, kStride};
    walk_pairs(state, tile, [&](int row) { return random.walk(rows.position(row)); });
    return state.failures;
  }
};

/// For any run of at most kWarpRows.
template <class T, int D>
__device__ __noinline__ int halve_by_warp(const DeviceHalvingRule& rule, const RunRows& rows,
                                          WarpSpace& space, const HalvingRandom& random) {
  return rows.count <= 16 ? WarpHalving<T, D, 1>{rule, rows, space}.run(random)
                          : WarpHalving<T, D, 2>{rule, rows, space}.run(random);
}

}  // namespace pith::cuda
