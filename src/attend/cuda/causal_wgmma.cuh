#pragma once
// A chunk's attention on sm_90a: one warpgroup brings tiles of rows by bulk copies, the others
// attend with 64 queries each. Scores of the next tile are on the tensor cores while a tile's are
// turned into probabilities, and warpgroups take turns there (Shah et al. 2024, "FlashAttention-3",
// sections 3.1 and 3.2).

#include "attend/cuda/causal_result.cuh"
#include "attend/cuda/causal_wgmma_copy.cuh"
#include "attend/cuda/query_softmax.cuh"

namespace pith::cuda {

/// One warpgroup's 64 queries.
template <class T, class Form>
struct ChunkReader {
  static constexpr int D = Form::D, kColumns = Form::kColumns;
  using Scores = float[kColumns / 8][4];
  using Values = float[D / 8][4];
  using Operand = uint32_t[kColumns / 16][4];  // probabilities as products take them

  const ChunkSpace<Form>& space;
  const ChunkParams& p;
  const ChunkWork<Form>& work;
  int group;         // of the reading ones
  uint64_t q, k, v;  // descriptors: its queries', the first tiles'
  float scale;       // of scores, to units of log2
  int query;         // of this lane: r; the other is 8 further

  __device__ ChunkReader(const ChunkSpace<Form>& s, const ChunkParams& params,
                         const ChunkWork<Form>& w, int g)
      : space(s), p(params), work(w), group(g) {
    q = advance(tile_descriptor(space.q(), 128 * Form::kQueries), group * 64 * 128);
    k = tile_descriptor(space.k(0), 128 * kColumns);
    v = tile_descriptor(space.v(0), 128 * kColumns);
    scale = kLog2e * rsqrtf(static_cast<float>(D));
    query = work.first_query + 64 * group + static_cast<int>(threadIdx.x) / kWarp % 4 * 16 +
            static_cast<int>(threadIdx.x) % kWarp / 4;
  }

  static __device__ void free(SharedBarrier& barrier) {
    if (threadIdx.x % kWarp == 0) barrier.arrive();
  }
  /// Readers start their products in turn, so that one's exponentials are found under another's
  /// products.
  __device__ void await_turn() const { wait_named(1 + group, 256); }
  __device__ void pass_turn() const { arrive_named(1 + (group + 1) % Form::kReaders, 256); }

  __device__ void start_scores(Scores& s, int stage) const {
    const uint64_t tile = advance(k, stage * space.kTileBytes);
    pin(s);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < D / 16; ++i) {
      const int half = i / 4 * 128, step = i % 4 * 32;  // 16 channels on
      multiply_tiles<T>(s, advance(q, half * Form::kQueries + step),
                        advance(tile, half * kColumns + step), i > 0);
    }
    wgmma_commit();
  }
  __device__ void start_values(Values& acc, const Operand& a, int stage) const {
    const uint64_t tile = advance(v, stage * space.kTileBytes);
    pin(acc);
    wgmma_begin();
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i)
      multiply_values<T>(acc, a[i], advance(tile, i * 16 * 128));  // 16 rows on
    wgmma_commit();
  }
  static __device__ void round_all(Operand& a, const Scores& s) {
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        a[i][j] = pack<T>(s[2 * i + j / 2][2 * (j % 2)], s[2 * i + j / 2][2 * (j % 2) + 1]);
    }
  }
  static __device__ void shrink(Values& acc, const float (&factor)[2]) {
#pragma unroll
    for (int g = 0; g < D / 8; ++g) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[g][i] *= factor[i / 2];
    }
  }
  /// Rows that a query does not see vanish from the tile's scores.
  __device__ void mask(Scores& s, int tile) const {
    const int first = tile * kColumns,
              warp_query = query - static_cast<int>(threadIdx.x) % kWarp / 4;
    const bool above = first + kColumns > work.limit(warp_query);
    const bool below = Form::kBounded && first < work.unseen(warp_query + 15);
    if (!above && !below) return;
    const int column = first + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int limit = work.limit(query + 8 * i) - column;
      const int unseen = Form::kBounded ? work.unseen(query + 8 * i) - column : 0;
#pragma unroll
      for (int g = 0; g < kColumns / 8; ++g) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int at = 8 * g + j;
          if (at >= limit || (Form::kBounded && at < unseen)) s[g][2 * i + j] = -INFINITY;
        }
      }
    }
  }

  /// Goes on from what earlier launches found: values are normalised, so their sum is 1.
  __device__ void restore(QuerySums& sums, Values& acc) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = query + 8 * i;
      if (t >= p.call.tokens) continue;
      const size_t at = static_cast<size_t>(t) * p.call.query_heads + work.head;
      const float log_sum = p.call.log_sum[at];
      if (log_sum == -INFINITY) continue;
      sums.top[i] = log_sum - p.call.span.log_weight * kLog2e;  // scores here leave it out
      sums.sum[i] = threadIdx.x % 4 == 0 ? 1 : 0;
#pragma unroll
      for (int g = 0; g < D / 8; ++g) {
        const float2 x =
            *reinterpret_cast<const float2*>(p.call.out + at * D + 8 * g + 2 * (threadIdx.x % 4));
        acc[g][2 * i] = x.x;
        acc[g][2 * i + 1] = x.y;
      }
    }
  }

  template <class R>
  static __device__ void write_row(R* to, const Values& acc, int i, float scale) {
#pragma unroll
    for (int g = 0; g < D / 8; ++g) {
      R* pair = to + 8 * g + 2 * (threadIdx.x % 4);
      const float x = acc[g][2 * i] * scale, y = acc[g][2 * i + 1] * scale;
      if constexpr (sizeof(R) == 4) {
        *reinterpret_cast<float2*>(pair) = make_float2(x, y);
      } else {
        *reinterpret_cast<uint32_t*>(pair) = pack<R>(x, y);
      }
    }
  }
  __device__ void write(const Values& acc, const QuerySums& sums) const {
    const CausalCall& c = p.call;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = sum_over_columns(sums.sum[i]);
      const int t = query + 8 * i;
      if (t >= c.tokens) continue;
      const float inverse = sum > 0 ? 1 / sum : 0;
      const size_t at = static_cast<size_t>(t) * c.query_heads + work.head;
      if (c.log_sum && threadIdx.x % 4 == 0) {
        c.log_sum[at] = sum > 0 ? sums.top[i] + c.span.log_weight * kLog2e + log2f(sum) : -INFINITY;
      }
      write_result(c, at, [&](auto* to) { write_row(to, acc, i, inverse); });
    }
  }

  /// Scores of a tile become probabilities; as soften().
  __device__ bool soften_tile(Scores& s, QuerySums& sums, float (&factor)[2], int tile) const {
    if constexpr (!Form::kWeighted) {
      mask(s, tile);
      return soften(s, sums, factor, scale);
    }
    const float* weights =
        space.weights() + tile * kColumns + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int g = 0; g < kColumns / 8; ++g) {
      const float2 w = *reinterpret_cast<const float2*>(weights + 8 * g);
      s[g][0] = fmaf(s[g][0], scale, w.x);
      s[g][1] = fmaf(s[g][1], scale, w.y);
      s[g][2] = fmaf(s[g][2], scale, w.x);
      s[g][3] = fmaf(s[g][3], scale, w.y);
    }
    mask(s, tile);
    return soften(s, sums, factor, 1);
  }

  __device__ void run() const {
    auto& b = space.barriers();
    float s[kColumns / 8][4], acc[D / 8][4] = {}, factor[2];
    Operand a;
    QuerySums sums;
    if (!p.call.first) restore(sums, acc);
    if (work.empty()) return write(acc, sums);
    if (group == Form::kReaders - 1) pass_turn();  // the first one's
    RingPlace<Form::kStages> at, next{1};
    const auto await_keys = [&] { b.k_full[next.stage()].wait(next.phase()); };
    b.q_full.wait(0);
    b.k_full[0].wait(0);
    start_scores(s, 0);
    wgmma_wait<0>();
    pin(s);
    free(b.k_free[0]);
    if (soften_tile(s, sums, factor, work.end_tile - 1)) shrink(acc, factor);
    round_all(a, s);
    if (work.end_tile - 1 > work.first_tile) await_keys();
    for (int tile = work.end_tile - 2; tile >= work.first_tile; --tile) {
      const RingPlace<Form::kStages> before = at;
      at = next;
      ++next.count;
      await_turn();
      start_scores(s, at.stage());
      b.v_full[before.stage()].wait(before.phase());
      start_values(acc, a, before.stage());
      pass_turn();
      wgmma_wait<1>();
      pin(s);
      free(b.k_free[at.stage()]);
      const bool rises = soften_tile(s, sums, factor, tile);
      // It also holds the exponentials in front of the wait for the values: without a loop between
      // them the assembler moves them behind it.
      if (tile > work.first_tile) await_keys();
      wgmma_wait<0>();
      pin(acc);
      free(b.v_free[before.stage()]);
      if (rises) shrink(acc, factor);
      round_all(a, s);
    }
    b.v_full[at.stage()].wait(at.phase());
    start_values(acc, a, at.stage());
    wgmma_wait<0>();
    pin(acc);
    write(acc, sums);
  }
};

/// A block: 128 queries of one head.
template <class T, class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    chunk_kernel(const __grid_constant__ ChunkParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const auto space = ChunkSpace<Form>::make();
  const ChunkWork<Form> work(p.call);
  if (threadIdx.x == 0) space.init();
  if constexpr (Form::kWeighted) {
    const CausalSpan& span = p.call.span;
    const float* from = span.log_weights + work.kv_head * span.weights_stride;
    for (int i = threadIdx.x; i < work.end_tile * Form::kColumns; i += Form::kThreads)
      space.weights()[i] = i < work.rows ? from[i] * kLog2e : 0;
  }
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == 0) {
    give_registers<Form::kCopierRegisters>();
    if (threadIdx.x == 0 && !work.empty()) ChunkCopier<Form>{space, p, work, {}, {}}.run();
  } else {
    take_registers<Form::kReaderRegisters>();
    ChunkReader<T, Form>(space, p, work, group - 1).run();
  }
#else
  asm volatile("trap;");  // never launched elsewhere
#endif
}

}  // namespace pith::cuda
