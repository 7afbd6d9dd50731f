#include "attend/cuda/causal.h"

#include "attend/cuda/running.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kTileQueries = 16 * kWarps;  // a warp has 16
constexpr int kTileRows = 64;

/// Four 8 x 8 tiles from shared memory; lane l gives the address of row l % 8 of tile l / 8.
__device__ inline void load_tiles(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}
__device__ inline void load_tiles_transposed(uint32_t (&to)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(address));
}

/// A tile of rows in shared memory. Rows are D numbers; 16-byte piece u of row r lies at
/// u ^ (r % 8), so that 8 rows' pieces at one u lie in different banks.
template <class T, int D>
struct RowTile {
  static constexpr int kPieces = D / 8, kBytes = kTileRows * D * 2;

  static __device__ uint32_t at(int row, int piece) {
    return static_cast<uint32_t>((row * kPieces + (piece ^ (row & 7))) * 16);
  }
  /// Starts the copy of rows first, ... of `from`; past the end the last row stands in.
  static __device__ void fetch(char* to, const T* from, int64_t first, int64_t rows) {
#pragma unroll
    for (int i = threadIdx.x; i < kTileRows * kPieces; i += kThreads) {
      const int row = i / kPieces, piece = i % kPieces;
      copy_async(to + at(row, piece), from + min(first + row, rows - 1) * D + piece * 8);
    }
  }
};

/// What a warp carries for its queries r and r + 8 of 16.
template <int D>
struct QueryRun {
  float top[2] = {kUnseen, kUnseen}, sum[2] = {0, 0};  // sum: of this lane's columns
  float acc[D / 8][4] = {};                            // channels 8 n + 2 c, + 1 of r | r + 8
};

/// Scores of the warp's 16 queries with the tile's rows: s[n] holds rows 8 n + 2 c, + 1.
template <class T, int D>
__device__ inline void find_scores(float (&s)[kTileRows / 8][4], const uint32_t (&q)[D / 16][4],
                                   uint32_t keys) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < kTileRows / 8; n += 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) s[n][j] = s[n + 1][j] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t b[4];  // rows 8 n.. and 8 n + 8.., channels 16 k.. and 16 k + 8..
      load_tiles(b,
                 keys + RowTile<T, D>::at(8 * n + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
      mma<T>(s[n], q[k][0], q[k][1], q[k][2], q[k][3], b[0], b[1]);
      mma<T>(s[n + 1], q[k][0], q[k][1], q[k][2], q[k][3], b[2], b[3]);
    }
  }
}

/// Scores become probabilities; sums and maxima follow.
template <int D>
__device__ inline void weigh(QueryRun<D>& run, float (&s)[kTileRows / 8][4]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = run.top[half];
#pragma unroll
    for (int n = 0; n < kTileRows / 8; ++n) {
      top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
    top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
    const float shrink = exp2_fast(run.top[half] - top);
    run.top[half] = top;
    float sum = run.sum[half] * shrink;
#pragma unroll
    for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
      for (int j = 2 * half; j < 2 * half + 2; ++j) {
        s[n][j] = exp2_fast(s[n][j] - top);
        sum += s[n][j];
      }
    }
    run.sum[half] = sum;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      run.acc[n][2 * half] *= shrink;
      run.acc[n][2 * half + 1] *= shrink;
    }
  }
}

template <class T, int D>
__device__ inline void add_values(QueryRun<D>& run, const float (&p)[kTileRows / 8][4],
                                  uint32_t values) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < kTileRows / 16; ++k) {
    const uint32_t a[4] = {pack<T>(p[2 * k][0], p[2 * k][1]), pack<T>(p[2 * k][2], p[2 * k][3]),
                           pack<T>(p[2 * k + 1][0], p[2 * k + 1][1]),
                           pack<T>(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t b[4];  // rows 16 k.. and 16 k + 8.. of channels 8 n.., then of 8 n + 8..
      load_tiles_transposed(b, values + RowTile<T, D>::at(16 * k + lane % 16, n + lane / 16));
      mma<T>(run.acc[n], a[0], a[1], a[2], a[3], b[0], b[1]);
      mma<T>(run.acc[n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
    }
  }
}

/// Goes on from what earlier launches found: values are normalised, so their sum is 1.
template <int D>
__device__ inline void restore(QueryRun<D>& run, const CausalCall& p, int head,
                               const int (&token)[2]) {
  const int c = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (token[half] >= p.tokens) continue;
    const size_t at = static_cast<size_t>(token[half]) * p.query_heads + head;
    const float log_sum = p.log_sum[at];
    if (log_sum == -INFINITY) continue;
    run.top[half] = log_sum;
    run.sum[half] = c == 0 ? 1 : 0;
#pragma unroll
    for (int n = 0; n < D / 8; ++n) {
      const float2 v = *reinterpret_cast<const float2*>(p.out + at * D + 8 * n + 2 * c);
      run.acc[n][2 * half] = v.x;
      run.acc[n][2 * half + 1] = v.y;
    }
  }
}

template <class R, int D>
__device__ inline void write_row(R* to, const QueryRun<D>& run, int half, float scale) {
#pragma unroll
  for (int n = 0; n < D / 8; ++n) {
    R* pair = to + 8 * n + 2 * (threadIdx.x % 4);
    pair[0] = from_float<R>(run.acc[n][2 * half] * scale);
    pair[1] = from_float<R>(run.acc[n][2 * half + 1] * scale);
  }
}

template <int D>
__device__ inline void write(const QueryRun<D>& run, const CausalCall& p, int head,
                             const int (&token)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = run.sum[half];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (token[half] >= p.tokens) continue;
    const float scale = sum > 0 ? 1 / sum : 0;
    const size_t at = static_cast<size_t>(token[half]) * p.query_heads + head;
    if (!p.last) {
      write_row(p.out + at * D, run, half, scale);
      if (threadIdx.x % 4 == 0) {
        p.log_sum[at] = sum > 0 ? run.top[half] + log2f(sum) : -INFINITY;
      }
    } else if (p.result_dtype == DType::kF32) {
      write_row(static_cast<float*>(p.result) + at * D, run, half, scale);
    } else if (p.result_dtype == DType::kF16) {
      write_row(static_cast<__half*>(p.result) + at * D, run, half, scale);
    } else {
      write_row(static_cast<__nv_bfloat16*>(p.result) + at * D, run, half, scale);
    }
  }
}

/// One block: 128 queries of one head. Rows come in tiles of 64 through two buffers.
template <class T, int D>
__global__ void __launch_bounds__(kThreads, 1) causal_kernel(const __grid_constant__ CausalCall p) {
  extern __shared__ __align__(128) char shared[];
  using Tile = RowTile<T, D>;
  const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
  // The last queries see most rows: they go first.
  const int head = blockIdx.x, block = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const int first_token = block * kTileQueries + static_cast<int>(threadIdx.x) / kWarp * 16;
  const int token[2] = {first_token + r, first_token + r + 8};
  const size_t kv_head = head / (p.query_heads / p.kv_heads);
  const T* keys = static_cast<const T*>(p.span.keys) + kv_head * p.span.head_stride;
  const T* values = static_cast<const T*>(p.span.values) + kv_head * p.span.head_stride;
  const int64_t rows = p.span.rows, before = p.span.before;
  const int last_token = min((block + 1) * kTileQueries, p.tokens) - 1;
  const int64_t seen = before < 0 ? rows : min(rows, before + last_token + 1);
  const int tiles = static_cast<int>((seen + kTileRows - 1) / kTileRows);

  const auto fetch = [&](int tile) {
    char* to = shared + tile % 2 * 2 * Tile::kBytes;
    Tile::fetch(to, keys, int64_t{tile} * kTileRows, rows);
    Tile::fetch(to + Tile::kBytes, values, int64_t{tile} * kTileRows, rows);
    commit_copies();
  };
  fetch(0);

  uint32_t q[D / 16][4];
#pragma unroll
  for (int k = 0; k < D / 16; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int t = min(token[i % 2], p.tokens - 1);
      const T* row =
          static_cast<const T*>(p.q) + (static_cast<size_t>(t) * p.query_heads + head) * D;
      q[k][i] = *reinterpret_cast<const uint32_t*>(row + 16 * k + 2 * c + i / 2 * 8);
    }
  }
  QueryRun<D> run;
  if (!p.first) restore<D>(run, p, head, token);

  const float scale = kLog2e * rsqrtf(static_cast<float>(D)), shift = p.span.log_weight * kLog2e;
  const auto base = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  for (int tile = 0; tile < tiles; ++tile) {
    wait_for_copies<0>();
    __syncthreads();  // the tile is there, and nobody reads the one before it any more
    if (tile + 1 < tiles) fetch(tile + 1);
    const uint32_t at = base + tile % 2 * 2 * Tile::kBytes;
    float s[kTileRows / 8][4];
    find_scores<T, D>(s, q, at);
    const int64_t first_row = int64_t{tile} * kTileRows;
    const bool whole = first_row + kTileRows <= rows &&
                       (before < 0 || first_row + kTileRows <= before + first_token + 1);
#pragma unroll
    for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        s[n][j] = s[n][j] * scale + shift;
        const int64_t row = first_row + 8 * n + 2 * c + j % 2;
        if (!whole && (row >= rows || (before >= 0 && row > before + token[j / 2]))) {
          s[n][j] = -INFINITY;
        }
      }
    }
    weigh<D>(run, s);
    add_values<T, D>(run, s, at + Tile::kBytes);
  }
  wait_for_copies<0>();
  write<D>(run, p, head, token);
}

template <class T, int D>
void launch(const CausalCall& call, cudaStream_t stream) {
  constexpr size_t kBytes = 4 * RowTile<T, D>::kBytes;
  const auto kernel = causal_kernel<T, D>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kBytes)),
        "prefill attention's shared memory");
  const dim3 grid(static_cast<unsigned>(call.query_heads),
                  static_cast<unsigned>((call.tokens + kTileQueries - 1) / kTileQueries));
  kernel<<<grid, kThreads, kBytes, stream>>>(call);
  check(cudaGetLastError(), "prefill attention");
}

}  // namespace

void attend_chunk(const CausalCall& call, cudaStream_t stream) {
  call.check();
  const bool bf16 = call.dtype == DType::kBF16;
  if (call.head_dim == 64) {
    bf16 ? launch<__nv_bfloat16, 64>(call, stream) : launch<__half, 64>(call, stream);
  } else {
    bf16 ? launch<__nv_bfloat16, 128>(call, stream) : launch<__half, 128>(call, stream);
  }
}

}  // namespace pith::cuda
