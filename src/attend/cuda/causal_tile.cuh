#pragma once
// Tiles of chunk attention: 64 rows and 128 queries in shared memory, and their scores. One block
// has four warps, each with 32 queries. Heads of 256 channels have half the queries: sums of 16
// are 128 registers.

#include "kernels/cuda/mma.cuh"

namespace pith::cuda {

inline constexpr int kChunkWarps = 4, kChunkThreads = kChunkWarps * kWarp;
/// Blocks of 16 queries a warp: rows from shared memory serve 32 queries.
template <int D>
inline constexpr int kBlocks = D > 128 ? 1 : 2;
template <int D>
inline constexpr int kTileQueries = 16 * kBlocks<D>* kChunkWarps;
inline constexpr int kTileRows = 64;

/// A tile of rows in shared memory. Rows are D numbers; 16-byte piece u of row r lies at
/// u ^ (r % 8), so that 8 rows' pieces at one u lie in different banks.
template <class T, int D>
struct RowTile {
  static constexpr int kPieces = D / 8, kBytes = kTileRows * D * 2;
  static constexpr int kQueryBytes = kTileQueries<D> * D * 2;

  static __device__ uint32_t at(int row, int piece) {
    return static_cast<uint32_t>((row * kPieces + (piece ^ (row & 7))) * 16);
  }
  /// Rows 8 i .. begin row_bytes(8 i) further; pieces 2 i, 2 i + 1 are where 0 and 1 are, ^ 32 i.
  static __device__ constexpr uint32_t row_bytes(int n) { return n * D * 2; }

  /// Starts the copy of `kCount` rows first, ... of `from`; past the end the last row stands in.
  template <int kCount>
  static __device__ void fetch(char* to, const T* from, size_t stride, int first, int rows) {
#pragma unroll
    for (int i = threadIdx.x; i < kCount * kPieces; i += kChunkThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      copy_async(to + at(row, piece),
                 from + static_cast<size_t>(min(first + row, rows - 1)) * stride + piece * 8);
    }
  }
};

using Scores = float[kTileRows / 8][4];  // [n]: rows 8 n + 2 c, + 1 for queries r | r + 8

/// Scores of the warp's queries, which lie at `queries`, with the tile's rows.
template <class T, int D>
__device__ inline void find_scores(Scores (&s)[kBlocks<D>], uint32_t queries, uint32_t keys) {
  using Tile = RowTile<T, D>;
  const int lane = threadIdx.x % kWarp;
  const uint32_t query_lane = Tile::at(lane % 16, lane / 16);
  const uint32_t key_lane = Tile::at(lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int m = 0; m < kBlocks<D>; ++m) {
#pragma unroll
    for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) s[m][n][j] = 0;
    }
  }
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
    uint32_t q[kBlocks<D>][4];  // queries r | r + 8 of channels 16 k.., then of 16 k + 8..
#pragma unroll
    for (int m = 0; m < kBlocks<D>; ++m) {
      load_tiles(q[m], queries + (query_lane ^ 32 * k) + Tile::row_bytes(16 * m));
    }
#pragma unroll
    for (int n = 0; n < kTileRows / 8; n += 2) {
      uint32_t b[4];  // rows 8 n.. and 8 n + 8.., channels 16 k.. and 16 k + 8..
      load_tiles(b, keys + (key_lane ^ 32 * k) + Tile::row_bytes(8 * n));
#pragma unroll
      for (int m = 0; m < kBlocks<D>; ++m) {
        mma<T>(s[m][n], q[m][0], q[m][1], q[m][2], q[m][3], b[0], b[1]);
        mma<T>(s[m][n + 1], q[m][0], q[m][1], q[m][2], q[m][3], b[2], b[3]);
      }
    }
  }
}

}  // namespace pith::cuda
