#include "attend/cuda/causal.h"

#include <algorithm>

#include "attend/cuda/causal_result.cuh"
#include "attend/cuda/causal_tile.cuh"
#include "attend/cuda/variant.cuh"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {
namespace {

/// State of a warp for queries r and r + 8 of one of its blocks of 16.
template <int D>
struct QueryRun {
  float top[2] = {kUnseen, kUnseen}, sum[2] = {0, 0};  // sum: of this lane's columns
  float acc[D / 8][4] = {};                            // channels 8 n + 2 c, + 1 of r | r + 8
};

/// Scores become probabilities; sums and maxima follow.
template <int D>
__device__ inline void weigh(QueryRun<D>& run, Scores& s) {
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
__device__ inline void add_values(QueryRun<D> (&run)[kBlocks<D>], const Scores (&p)[kBlocks<D>],
                                  uint32_t values) {
  using Tile = RowTile<T, D>;
  const int lane = threadIdx.x % kWarp;
  const uint32_t value_lane = Tile::at(lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < kTileRows / 16; ++k) {
    uint32_t a[kBlocks<D>][4];
#pragma unroll
    for (int m = 0; m < kBlocks<D>; ++m) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* pair = p[m][2 * k + i / 2] + i % 2 * 2;
        a[m][i] = pack<T>(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t b[4];  // rows 16 k.. and 16 k + 8.. of channels 8 n.., then of 8 n + 8..
      load_tiles_transposed(b, values + (value_lane ^ 16 * n) + Tile::row_bytes(16 * k));
#pragma unroll
      for (int m = 0; m < kBlocks<D>; ++m) {
        mma<T>(run[m].acc[n], a[m][0], a[m][1], a[m][2], a[m][3], b[0], b[1]);
        mma<T>(run[m].acc[n + 1], a[m][0], a[m][1], a[m][2], a[m][3], b[2], b[3]);
      }
    }
  }
}

/// Rows with weights of their own cost the others a tenth of their speed in one kernel: they have
/// theirs, and so have those of which a query does not see the first ones. Capped scores have one
/// for all rows.
enum class Kind { kPlain, kWeighted, kBounded, kCapped };
template <Kind kKind>
inline constexpr bool kWeighs = kKind == Kind::kWeighted || kKind == Kind::kCapped;
template <Kind kKind>
inline constexpr bool kBounds = kKind == Kind::kBounded || kKind == Kind::kCapped;

/// The scores of rows that a query does not see vanish; the others are scaled and weighted.
template <Kind kKind>
struct Mask {
  float scale, shift;
  int rows, before, from;
  const float* weights;  // [rows] or null
  SoftCap cap;

  __device__ void apply(Scores& s, int first_row, int first_token) const {
    constexpr bool kBounded = kBounds<kKind>;
    const int lane = threadIdx.x % kWarp, r = lane / 4, c = lane % 4;
    const bool whole = first_row + kTileRows <= rows &&
                       (before < 0 || first_row + kTileRows <= before + first_token + 1) &&
                       (!kBounded || first_row >= from + first_token + 15);
    // How many of the rows of the tile token `first_token` + r sees.
    const int seen = before < 0 ? kTileRows : before + first_token + r + 1 - first_row;
    const int unseen = kBounded ? from + first_token + r - first_row : 0;  // of its first rows
    if constexpr (kKind == Kind::kCapped) cap.apply(s);
#pragma unroll
    for (int n = 0; n < kTileRows / 8; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int row = 8 * n + 2 * c + j % 2;
        s[n][j] = s[n][j] * scale + shift;
        if (kKind == Kind::kWeighted || (kKind == Kind::kCapped && weights)) {
          s[n][j] += weights[min(first_row + row, rows - 1)] * kLog2e;
        }
        if (whole) continue;
        const bool hidden = first_row + row >= rows || (before >= 0 && row >= seen + j / 2 * 8) ||
                            (kBounded && row < unseen + j / 2 * 8);
        if (hidden) s[n][j] = -INFINITY;
      }
    }
  }
};

/// The token of this lane's query r or r + 8.
__device__ inline int token_of(int first_token, int half) {
  return first_token + static_cast<int>(threadIdx.x) % kWarp / 4 + 8 * half;
}

/// Continues from earlier launches: values are normalised, so their sum is 1.
template <int D>
__device__ inline void restore(QueryRun<D>& run, const CausalCall& p, int head, int first_token) {
  const int c = threadIdx.x % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int token = token_of(first_token, half);
    if (token >= p.tokens) continue;
    const size_t at = static_cast<size_t>(token) * p.query_heads + head;
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
                             int first_token) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float sum = sum_over_columns(run.sum[half]);
    const int token = token_of(first_token, half);
    if (token >= p.tokens) continue;
    const float scale = sum > 0 ? 1 / sum : 0;
    const size_t at = static_cast<size_t>(token) * p.query_heads + head;
    if (p.log_sum && threadIdx.x % 4 == 0) {
      p.log_sum[at] = sum > 0 ? run.top[half] + log2f(sum) : -INFINITY;
    }
    write_result(p, at, [&](auto* to) { write_row(to, run, half, scale); });
  }
}

__device__ inline int rows_of(const CausalSpan& span, size_t kv_head) {
  const int rows = static_cast<int>(span.rows);
  if (!span.heads.rows) return rows;
  return min(max(span.heads.rows[kv_head] - static_cast<int>(span.head_rows_before), 0), rows);
}

/// One block: 128 queries of one head, 64 if it has 256 channels. Rows come in tiles of 64 through
/// two buffers.
template <class T, int D, Kind kKind>
__global__ void __launch_bounds__(kChunkThreads, D > 128 ? 1 : 2)
    causal_kernel(const __grid_constant__ CausalCall p, const __grid_constant__ CausalSpan span) {
  auto* shared = launched_shared<char>();
  using Tile = RowTile<T, D>;
  // The last queries see most rows: they go first.
  const int head = blockIdx.x, block = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const int own_query = static_cast<int>(threadIdx.x) / kWarp * 16 * kBlocks<D>;  // of the tile
  const int first_token = block * kTileQueries<D> + own_query;
  const size_t kv_head = head / (p.query_heads / p.kv_heads);
  const size_t of_head = span.heads.at(kv_head, span.head_stride, D);
  const T* keys = static_cast<const T*>(span.keys) + of_head;
  const T* values = static_cast<const T*>(span.values) + of_head;
  const int rows = rows_of(span, kv_head);
  const int before = static_cast<int>(span.before);
  const int last_token = min((block + 1) * kTileQueries<D>, p.tokens) - 1;
  const int seen = before < 0 ? rows : min(rows, before + last_token + 1);
  const int tiles = (seen + kTileRows - 1) / kTileRows;
  const int from = kBounds<kKind> ? static_cast<int>(span.from) : 0;
  const int first_tile = kBounds<kKind> ? max(0, from + block * kTileQueries<D>) / kTileRows : 0;

  char* const ring = shared + Tile::kQueryBytes;
  const auto fetch = [&](int tile) {
    char* to = ring + tile % 2 * 2 * Tile::kBytes;
    const int first = tile * kTileRows;
    Tile::template fetch<kTileRows>(to, keys, D, first, rows);
    Tile::template fetch<kTileRows>(to + Tile::kBytes, values, D, first, rows);
    commit_copies();
  };
  Tile::template fetch<kTileQueries<D>>(shared, static_cast<const T*>(p.q) + head * D,
                                        static_cast<size_t>(p.query_heads) * D,
                                        block * kTileQueries<D>, p.tokens);
  first_tile < tiles ? fetch(first_tile) : commit_copies();

  QueryRun<D> run[kBlocks<D>];
#pragma unroll
  for (int m = 0; m < kBlocks<D>; ++m) {
    if (p.first) {
      begin_at_sink(run[m].top, run[m].sum, p.sinks, head);
    } else {
      restore<D>(run[m], p, head, first_token + 16 * m);
    }
  }

  const float* weights =
      span.log_weights ? span.log_weights + kv_head * span.weights_stride : nullptr;
  const Mask<kKind> mask{kLog2e * rsqrtf(static_cast<float>(D)),
                         span.log_weight * kLog2e,
                         rows,
                         before,
                         from,
                         weights,
                         SoftCap::of(p.soft_cap, rsqrtf(static_cast<float>(D)))};
  const uint32_t queries_at =
      static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + Tile::row_bytes(own_query);
  const auto ring_at = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  for (int tile = first_tile; tile < tiles; ++tile) {
    wait_for_copies<0>();
    __syncthreads();  // the tile is there, and nobody reads the one before it any more
    if (tile + 1 < tiles) fetch(tile + 1);
    const uint32_t at = ring_at + tile % 2 * 2 * Tile::kBytes;
    Scores s[kBlocks<D>];
    find_scores<T, D>(s, queries_at, at);
#pragma unroll
    for (int m = 0; m < kBlocks<D>; ++m) {
      mask.apply(s[m], tile * kTileRows, first_token + 16 * m);
      weigh<D>(run[m], s[m]);
    }
    add_values<T, D>(run, s, at + Tile::kBytes);
  }
  wait_for_copies<0>();
#pragma unroll
  for (int m = 0; m < kBlocks<D>; ++m) write<D>(run[m], p, head, first_token + 16 * m);
}

template <class T, int D, Kind kKind>
void launch_as(const CausalCall& call, const CausalSpan& span, cudaStream_t stream) {
  constexpr size_t kBytes = RowTile<T, D>::kQueryBytes + 4 * RowTile<T, D>::kBytes;
  const dim3 grid(static_cast<unsigned>(call.query_heads),
                  static_cast<unsigned>((call.tokens + kTileQueries<D> - 1) / kTileQueries<D>));
  launch_kernel(causal_kernel<T, D, kKind>, {grid, kChunkThreads, kBytes}, stream,
                "prefill attention", call, span);
}

template <class T, int D>
void launch(const CausalCall& call, const CausalSpan& span, cudaStream_t stream) {
  if (call.soft_cap != 0) {
    CausalSpan own = span;  // what a kernel's numbers hold
    own.from = std::max(span.from, -(int64_t{1} << 30));
    return launch_as<T, D, Kind::kCapped>(call, own, stream);
  }
  if (span.bounded(call.tokens)) return launch_as<T, D, Kind::kBounded>(call, span, stream);
  span.log_weights ? launch_as<T, D, Kind::kWeighted>(call, span, stream)
                   : launch_as<T, D, Kind::kPlain>(call, span, stream);
}

}  // namespace

void launch_chunk_mma(const CausalCall& call, const CausalSpan& span, cudaStream_t stream) {
  with_rows_of<256>(call.dtype, call.head_dim,
                    [&]<class T, int D>() { launch<T, D>(call, span, stream); });
}

}  // namespace pith::cuda
