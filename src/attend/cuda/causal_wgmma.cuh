#pragma once
// A chunk's attention on sm_90a: one warpgroup brings tiles of rows by bulk copies, the others
// attend with 64 queries each. Scores of the next tile are on the tensor cores while a tile's are
// turned into probabilities, and warpgroups take turns there (Shah et al. 2024, "FlashAttention-3",
// sections 3.1 and 3.2). Tiles of all spans are one sequence, and a block goes on to its next
// queries: their first tiles come while the last ones are worked on.

#include "attend/cuda/causal_result.cuh"
#include "attend/cuda/causal_wgmma_copy.cuh"
#include "attend/cuda/query_softmax.cuh"

namespace pith::cuda {

/// One warpgroup's 64 queries of each item.
template <class T, class Form>
struct ChunkReader {
  static constexpr int D = Form::D, kColumns = Form::kColumns;
  /// Of scores, to units of log2: over the root of D.
  static constexpr float kScale = kLog2e * (D == 64    ? 0.125f
                                            : D == 128 ? 0.08838834764831845f
                                                       : 0.0625f);
  using Scores = float[kColumns / 8][4];
  using Values = float[D / 8][4];
  using Operand = uint32_t[kColumns / 16][4];  // probabilities as products take them
  using Work = ChunkWork<Form>;
  /// Loops over spans and items leave too few uniform registers for whole ones.
  using Descriptor = std::conditional_t<Form::kOne, uint64_t, uint32_t>;

  __device__ ChunkReader(const ChunkSpace<Form>& s, const ChunkParams& params, int g)
      : space(s), p(params), group(g) {
    q = advance(descriptor(space.q(), Form::kQueries), group * 64 * 128);
    k = descriptor(space.k(0), kColumns);
    v = descriptor(space.v(0), kColumns);
  }

  static __device__ Descriptor descriptor(const void* shared, int rows) {
    const uint32_t own = tile_descriptor(shared, 128 * rows);
    if constexpr (Form::kOne) return whole_descriptor(own);
    return static_cast<Descriptor>(own);
  }

  __device__ void run() {
    if (group == Form::kReaders - 1) pass_turn();  // the first one's
    for_each_item<Form>(p, [&](int item) { attend(Work(p, item)); });
  }

  static __device__ void free(SharedBarrier& barrier) {
    if (threadIdx.x % kWarp == 0) barrier.arrive();
  }
  /// Readers start their products in turn, so that one's exponentials are found under another's
  /// products.
  __device__ void await_turn() const { wait_named(1 + group, 256); }
  __device__ void pass_turn() const { arrive_named(1 + (group + 1) % Form::kReaders, 256); }

  __device__ void start_scores(Scores& s, int stage) const {
    const Descriptor tile = advance(k, stage * space.kTileBytes);
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
    const Descriptor tile = advance(v, stage * space.kTileBytes);
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
  /// The span of the tiles to come: where its scores are shifted otherwise, maxima are too.
  __device__ void enter(int number, QuerySums& sums) {
    const float shift = this->shift();
    const ChunkSpan& s = p.spans[number];
    span = number;
    rows = s.rows;
    before = s.before;
    if constexpr (Form::kBounded) from = s.from;
    if constexpr (Form::kWeighted) weighted = s.weights != nullptr;
#pragma unroll
    for (int i = 0; i < 2; ++i) sums.top[i] += shift - s.shift;
  }
  /// The rows that the span's scores leave out.
  __device__ float shift() const { return span < 0 ? 0 : p.spans[span].shift; }
  /// Of the span, query t sees rows unseen(t) .. limit(t) - 1.
  __device__ int limit(int t) const { return before < 0 ? rows : min(rows, before + t + 1); }
  __device__ int unseen(int t) const { return max(0, from + t); }

  /// Rows that a query does not see vanish from the tile's scores.
  __device__ void mask(Scores& s, int tile) const {
    const int first = tile * kColumns,
              warp_query = query - static_cast<int>(threadIdx.x) % kWarp / 4;
    const bool above = first + kColumns > limit(warp_query);
    const bool below = Form::kBounded && first < unseen(warp_query + 15);
    if (!above && !below) return;
    const int column = first + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int end = limit(query + 8 * i) - column;
      const int begin = Form::kBounded ? unseen(query + 8 * i) - column : 0;
#pragma unroll
      for (int g = 0; g < kColumns / 8; ++g) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const int at = 8 * g + j;
          if (at >= end || (Form::kBounded && at < begin)) s[g][2 * i + j] = -INFINITY;
        }
      }
    }
  }

  /// Continues from earlier launches: values are normalised, so their sum is 1.
  __device__ void restore(QuerySums& sums, Values& acc, int head) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int t = query + 8 * i;
      if (t >= p.call.tokens) continue;
      const size_t at = static_cast<size_t>(t) * p.call.query_heads + head;
      const float log_sum = p.call.log_sum[at];
      if (log_sum == -INFINITY) continue;
      sums.top[i] = log_sum;
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
  __device__ void write(const Values& acc, const QuerySums& sums, int head) const {
    const CausalCall& c = p.call;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float sum = sum_over_columns(sums.sum[i]);
      const int t = query + 8 * i;
      if (t >= c.tokens) continue;
      const float inverse = sum > 0 ? 1 / sum : 0;
      const size_t at = static_cast<size_t>(t) * c.query_heads + head;
      if (c.log_sum && threadIdx.x % 4 == 0) {
        c.log_sum[at] = sum > 0 ? sums.top[i] + shift() + log2f(sum) : -INFINITY;
      }
      write_result(c, at, [&](auto* to) { write_row(to, acc, i, inverse); });
    }
  }

  /// Scores of a tile become probabilities; as soften().
  __device__ bool soften_tile(Scores& s, QuerySums& sums, float (&factor)[2], int tile) const {
    float to_log2 = kScale;
    if constexpr (Form::kCapped) p.cap.apply(s);
    if (Form::kWeighted && weighted) {
      const float* weights = space.weights(at.count) + 2 * (static_cast<int>(threadIdx.x) % 4);
#pragma unroll
      for (int g = 0; g < kColumns / 8; ++g) {
        const float2 w = *reinterpret_cast<const float2*>(weights + 8 * g);
        s[g][0] = fmaf(s[g][0], kScale, w.x);
        s[g][1] = fmaf(s[g][1], kScale, w.y);
        s[g][2] = fmaf(s[g][2], kScale, w.x);
        s[g][3] = fmaf(s[g][3], kScale, w.y);
      }
      to_log2 = 1;
    }
    mask(s, tile);
    return soften(s, sums, factor, to_log2);
  }

  __device__ void attend(const Work& work) {
    Values acc = {};
    QuerySums sums;
    query = work.first_query + 64 * group + static_cast<int>(threadIdx.x) / kWarp % 4 * 16 +
            static_cast<int>(threadIdx.x) % kWarp / 4;
    span = -1;
    if (p.call.first) {
      begin_at_sink(sums.top, sums.sum, p.call.sinks, work.head);
    } else {
      restore(sums, acc, work.head);
    }
    if (work.tiles > 0) walk_tiles(acc, sums, work);
    write(acc, sums, work.head);
  }

  __device__ void walk_tiles(Values& acc, QuerySums& sums, const Work& work) {
    auto& b = space.barriers();
    Scores s;
    Operand a;
    float factor[2];
    TileWalk<Form> walk(work);
    enter(walk.span, sums);
    RingPlace<Form::kStages> next{at.count + 1};
    const auto await_keys = [&] { b.k_full[next.stage()].wait(next.phase()); };
    b.q_full.wait(works++ % 2);
    b.k_full[at.stage()].wait(at.phase());
    start_scores(s, at.stage());
    wgmma_wait<0>();
    pin(s);
    free(b.k_free[at.stage()]);
    if (!Form::kOne && work.tiles == 1) free(b.q_free);
    if (soften_tile(s, sums, factor, walk.tile)) shrink(acc, factor);
    round_all(a, s);
    if (work.tiles > 1) await_keys();
    for (int left = work.tiles - 1; left > 0; --left) {
      const RingPlace<Form::kStages> last = at;
      at = next;
      ++next.count;
      if constexpr (Form::kOne) {
        walk.tile = walk.first + left - 1;
      } else {
        walk.next(work);
        if (walk.span != span) enter(walk.span, sums);
      }
      await_turn();
      start_scores(s, at.stage());
      b.v_full[last.stage()].wait(last.phase());
      start_values(acc, a, last.stage());
      pass_turn();
      wgmma_wait<1>();
      pin(s);
      free(b.k_free[at.stage()]);
      if (!Form::kOne && left == 1) free(b.q_free);
      const bool rises = soften_tile(s, sums, factor, walk.tile);
      // It also holds the exponentials in front of the wait for the values: without a loop between
      // them the assembler moves them behind it.
      if (left > 1) await_keys();
      wgmma_wait<0>();
      pin(acc);
      free(b.v_free[last.stage()]);
      if (rises) shrink(acc, factor);
      round_all(a, s);
    }
    b.v_full[at.stage()].wait(at.phase());
    start_values(acc, a, at.stage());
    wgmma_wait<0>();
    pin(acc);
    free(b.v_free[at.stage()]);
    at = next;
  }

  const ChunkSpace<Form>& space;
  const ChunkParams& p;
  int group;           // of the reading ones
  Descriptor q, k, v;  // its queries', the first tiles'
  RingPlace<Form::kStages> at;
  uint32_t works = 0;  // that had tiles
  // Of an item and the span that it is at.
  int query;  // of this lane: r; the other is 8 further
  int span, rows, before, from;
  bool weighted;
};

/// A block has its share of all items.
template <class T, class Form>
__global__ void __launch_bounds__(Form::kThreads, 1)
    chunk_kernel(const __grid_constant__ ChunkParams p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const auto space = ChunkSpace<Form>::make();
  if (threadIdx.x == 0) space.init();
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group == 0) {
    give_registers<Form::kCopierRegisters>();
    if (threadIdx.x == 0) ChunkCopier<Form>{space, p, {}, {}}.run();
    if (Form::kWeighted && threadIdx.x / kWarp == 1) ChunkWeigher<Form>{space, p, {}}.run();
  } else {
    take_registers<Form::kReaderRegisters>();
    ChunkReader<T, Form>(space, p, group - 1).run();
  }
#else
  asm volatile("trap;");  // never launched elsewhere
#endif
}

}  // namespace pith::cuda
