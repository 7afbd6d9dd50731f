#include "attend/cuda/mass.h"

#include <cmath>

#include "attend/cuda/causal_tile.cuh"
#include "attend/cuda/mass_token.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"

namespace pith::cuda {
namespace {

struct ChunkParams {
  ChunkMass call;
  MassTarget target;
  SoftCap cap;
};

/// A block: 64 rows of one KV head, that go past the queries of its group's heads.
template <class T, int D>
__global__ void __launch_bounds__(kChunkThreads)
    chunk_mass_kernel(const __grid_constant__ ChunkParams p) {
  auto* shared = launched_shared<char>();
  using Tile = RowTile<T, D>;
  const ChunkMass& call = p.call;
  const int head = blockIdx.y, first_row = blockIdx.x * kTileRows;
  const int group = call.shape.query_heads / call.shape.kv_heads;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, r = lane / 4, c = lane % 4;
  const int rows = p.target.count(head), first_query = call.tokens - call.queries;
  if (first_row >= rows) return;
  const T* keys = static_cast<const T*>(p.target.keys) + p.target.keys_at(head, D);
  char* const keys_at = shared + Tile::kQueryBytes;
  Tile::template fetch<kTileRows>(keys_at, keys, D, first_row, rows);
  const auto queries_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) +
                          Tile::row_bytes(warp * 16 * kBlocks<D>);
  const auto rows_at = static_cast<uint32_t>(__cvta_generic_to_shared(keys_at));
  const float scale = kLog2e * rsqrtf(static_cast<float>(D));
  float sums[kTileRows / 8][2] = {};                                // rows 8 n + 2 c, + 1
  const int seen_from = max(first_query, first_row - call.before);  // the first that sees a row
  for (int h = head * group; h < (head + 1) * group; ++h) {
    const T* q = static_cast<const T*>(call.q) + static_cast<size_t>(h) * D;
    for (int first = seen_from / kTileQueries<D> * kTileQueries<D>; first < call.tokens;
         first += kTileQueries<D>) {
      __syncthreads();  // nobody reads the queries before any more
      Tile::template fetch<kTileQueries<D>>(
          shared, q, static_cast<size_t>(call.shape.query_heads) * D, first, call.tokens);
      commit_copies();
      wait_for_copies<0>();
      __syncthreads();
      Scores s[kBlocks<D>];
      find_scores<T, D>(s, queries_at, rows_at);
#pragma unroll
      for (int m = 0; m < kBlocks<D>; ++m) p.cap.apply(s[m]);
#pragma unroll
      for (int m = 0; m < kBlocks<D>; ++m) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int token = first + (warp * kBlocks<D> + m) * 16 + r + 8 * half;
          const bool counts = token >= first_query && token < call.tokens;
          const float log_sum =
              counts ? call.log_sum[static_cast<size_t>(token) * call.shape.query_heads + h] : 0;
          const int seen = counts ? call.before + token + 1 - first_row : 0;
#pragma unroll
          for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
            for (int j = 0; j < 2; ++j) {
              const float x = exp2_fast(s[m][n][2 * half + j] * scale - log_sum);
              sums[n][j] += 8 * n + 2 * c + j < seen ? x : 0;
            }
          }
        }
      }
    }
  }
  __syncthreads();
  auto* parts = reinterpret_cast<float*>(shared);  // [warps, 64]
#pragma unroll
  for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float sum = sum_over_rows(sums[n][j]);
      if (r == 0) parts[warp * kTileRows + 8 * n + 2 * c + j] = sum;
    }
  }
  __syncthreads();
  const int row = first_row + static_cast<int>(threadIdx.x);
  if (threadIdx.x >= kTileRows || row >= rows) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kChunkWarps; ++w) sum += parts[w * kTileRows + threadIdx.x];
  const int at = mass_index(p.target, row);
  float& mass = p.target.mass[p.target.mass_at(head) + at];
  mass = at < p.target.known ? mass + sum : sum;
}

template <class T, int D>
void launch_chunk(const ChunkMass& call, const MassTarget& target, cudaStream_t stream) {
  constexpr size_t kBytes = RowTile<T, D>::kQueryBytes + RowTile<T, D>::kBytes;
  const dim3 grid((target.rows + kTileRows - 1) / kTileRows, call.shape.kv_heads);
  launch_kernel(chunk_mass_kernel<T, D>, {grid, kChunkThreads, kBytes}, stream, "attention mass",
                {call, target, SoftCap::of(call.shape.soft_cap, 1 / std::sqrt(float{D}))});
}

}  // namespace

void add_token_mass(const TokenMass& call, const MassTarget* target, cudaStream_t stream) {
  with_rows_of<256>(call.shape.dtype, call.shape.head_dim, [&]<class T, int D>() {
    launch_token<T, D, NoCodedMass>(call, target, stream);
  });
}

void add_chunk_mass(const ChunkMass& call, const MassTarget& target, cudaStream_t stream) {
  with_rows_of<256>(call.shape.dtype, call.shape.head_dim,
                    [&]<class T, int D>() { launch_chunk<T, D>(call, target, stream); });
}

}  // namespace pith::cuda
