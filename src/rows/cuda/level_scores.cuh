#pragma once
// Scores of 16 built rows of levels (level_build.cuh) with up to 8 queries, on the tensor cores.

#include "attend/cuda/dense_tile.cuh"
#include "rows/cuda/level_build.cuh"

namespace pith::cuda {

/// Built keys lie so that those who are served together find different banks.
template <int D>
inline constexpr int kBuiltKeyStride = D + 32;

/// to [D/32, lanes] <- queries q [8, D] as the operands of scores; one warp calls it.
template <int D>
__device__ inline void write_operands(uint4* to, const float* q) {
  const auto query = DenseTiles<__half, D>::prepare(q);
#pragma unroll
  for (int j = 0; j < D / 32; ++j) {
    to[j * kWarp + threadIdx.x % kWarp] = make_uint4(query.b[2 * j][0], query.b[2 * j][1],
                                                     query.b[2 * j + 1][0], query.b[2 * j + 1][1]);
  }
}

/// s <- rows r and r + 8 (lane / 4) with queries 2c and 2c + 1 (lane % 4).
template <int D>
__device__ inline void score_built(float (&s)[1][4], const __half* built, const uint4* operands) {
  using Dense = DenseTiles<__half, D>;
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  typename Dense::Tile tile;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const __half* row = built + (r + 8 * i) * kBuiltKeyStride<D> + 8 * c;
#pragma unroll
    for (int j = 0; j < D / 32; ++j) tile.k[i][j] = *reinterpret_cast<const uint4*>(row + 32 * j);
  }
  typename Dense::Query query;
#pragma unroll
  for (int j = 0; j < D / 32; ++j) {
    const uint4 four = operands[j * kWarp + lane];
    query.b[2 * j][0] = four.x, query.b[2 * j][1] = four.y;
    query.b[2 * j + 1][0] = four.z, query.b[2 * j + 1][1] = four.w;
  }
  Dense::scores(s, tile, query);
}

}  // namespace pith::cuda
