// The prefill kernel of sm_80 and newer: four warps, 16 queries each, tiles of 64 rows in two
// stages of shared memory.

#include "attend/cuda/prefill_softmax.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/tile.cuh"

namespace pith::cuda {
namespace {

constexpr int kRows = 64, kColumns = 64, kThreads = 128;

template <class T, int D>
struct MmaSpace {
  static constexpr int kTileBytes = kColumns * 2 * D;
  char* shared;
  __device__ char* q() const { return shared; }
  __device__ char* k(int stage) const { return shared + (1 + 2 * stage) * kTileBytes; }
  __device__ char* v(int stage) const { return shared + (2 + 2 * stage) * kTileBytes; }
  __device__ int* numbers() const { return reinterpret_cast<int*>(shared + 5 * kTileBytes); }
};

template <class T, int D>
__device__ inline void fetch_rows(const MmaSpace<T, D>& space, const PrefillParams& p,
                                  const QueryTile& tile, int j) {
  constexpr int kPieces = D / 8;
  const char* k = static_cast<const char*>(p.k) + tile.kv_head * p.k_head;
  const char* v = static_cast<const char*>(p.v) + tile.kv_head * p.v_head;
  for (int i = threadIdx.x; i < kColumns * kPieces; i += kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const size_t from = space.numbers()[j * kColumns + row];
    copy_async(space.k(j % 2) + piece_at<D>(row, piece), k + from * p.k_row + 16 * piece);
    copy_async(space.v(j % 2) + piece_at<D>(row, piece), v + from * p.v_row + 16 * piece);
  }
  commit_copies();
}

template <class T, int D>
__global__ void __launch_bounds__(kThreads) mma_kernel(const __grid_constant__ PrefillParams p) {
  auto* shared = launched_shared<char>();
  const PrefillChunk chunk = p.chunks[blockIdx.x / p.tiles];
  QueryTile tile = query_tile<kRows>(p, chunk, static_cast<int>(blockIdx.x) % p.tiles);
  if (tile.empty()) return;
  const MmaSpace<T, D> space{shared};
  auto* weights = reinterpret_cast<float*>(space.numbers() + p.list_rows);
  tile.weighted = make_list(space.numbers(), weights, p, chunk);
  constexpr int kPieces = D / 8;
  for (int i = threadIdx.x; i < kRows * kPieces; i += kThreads) {
    const int m = i / kPieces, piece = i % kPieces;
    const char* from = static_cast<const char*>(p.q) +
                       (tile.first + min(m / p.pack, tile.count - 1)) * p.q_row +
                       (tile.first_head + m % p.pack) * p.q_head + 16 * piece;
    copy_async(space.q() + piece_at<D>(m, piece), from);
  }
  __syncthreads();
  fetch_rows<T, D>(space, p, tile, 0);  // the queries are in its group of copies
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, m0 = 16 * warp + lane / 4;
  const int limit[2] = {tile.limit(m0), tile.limit(m0 + 8)};
  const int tiles = (tile.rows() + kColumns - 1) / kColumns, least = tile.limit(0);
  uint32_t q[D / 16][4];
  float acc[D / 8][4] = {};
  QuerySums sums;
  for (int j = 0; j < tiles; ++j) {
    if (j + 1 < tiles) {
      fetch_rows<T, D>(space, p, tile, j + 1);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    if (j == 0) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) load_a<D>(q[i], space.q(), 16 * warp, i);
    }
    float s[kColumns / 8][4] = {};
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
#pragma unroll
      for (int i = 0; i < D / 16; ++i) {
        uint32_t b[4];
        load_b<D>(b, space.k(j % 2), 16 * n, i);
        mma<T>(s[2 * n], q[i][0], q[i][1], q[i][2], q[i][3], b[0], b[1]);
        mma<T>(s[2 * n + 1], q[i][0], q[i][1], q[i][2], q[i][3], b[2], b[3]);
      }
    }
    float factor[2];
    if (soften(s, sums, factor, p.scale, weights + j * kColumns, (j + 1) * kColumns > least,
               j * kColumns, limit)) {
#pragma unroll
      for (int g = 0; g < D / 8; ++g) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[g][i] *= factor[i / 2];
      }
    }
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      const uint32_t a[4] = {pack<T>(s[2 * i][0], s[2 * i][1]), pack<T>(s[2 * i][2], s[2 * i][3]),
                             pack<T>(s[2 * i + 1][0], s[2 * i + 1][1]),
                             pack<T>(s[2 * i + 1][2], s[2 * i + 1][3])};
#pragma unroll
      for (int n = 0; n < D / 16; ++n) {
        uint32_t b[4];
        load_matrices_turned(b,
                             space.v(j % 2) + piece_at<D>(16 * i + lane % 16, 2 * n + lane / 16));
        mma<T>(acc[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
        mma<T>(acc[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
      }
    }
    __syncthreads();  // the next round fills the other stage, the one after it this one
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float scale = inverse_sum(sums.sum[i]);
    const int m = m0 + 8 * i;
    if (m / p.pack >= tile.count) continue;
    char* out = static_cast<char*>(p.out) + (tile.first + m / p.pack) * p.q_row +
                (tile.first_head + m % p.pack) * p.q_head;
#pragma unroll
    for (int g = 0; g < D / 8; ++g) {
      reinterpret_cast<uint32_t*>(out)[4 * g + lane % 4] =
          pack<T>(acc[g][2 * i] * scale, acc[g][2 * i + 1] * scale);
    }
  }
}

template <class T, int D>
void launch(const PrefillCall& call, cudaStream_t stream) {
  const PrefillParams p = prefill_params(call, kRows, kColumns);
  const size_t bytes = 5 * MmaSpace<T, D>::kTileBytes + size_t{8} * p.list_rows;
  const dim3 grid(call.chunk_count * p.tiles, call.query_heads / p.pack);
  launch_kernel(mma_kernel<T, D>, {grid, kThreads, bytes}, stream, "prefill attention", p);
}

}  // namespace

void prefill_chunks_mma(const PrefillCall& call, cudaStream_t stream) {
  call.check();
  const bool bf16 = call.dtype == DType::kBF16;
  if (call.head_dim == 64) {
    bf16 ? launch<__nv_bfloat16, 64>(call, stream) : launch<__half, 64>(call, stream);
  } else {
    bf16 ? launch<__nv_bfloat16, 128>(call, stream) : launch<__half, 128>(call, stream);
  }
}

}  // namespace pith::cuda
