#pragma once
// The reads of a block of Hopper's chunk attention (causal_wgmma.cuh): which queries and tiles of
// rows, in what order, where they lie in shared memory, and the warpgroup that brings them there.

#include <algorithm>
#include <cmath>

#include "attend/cuda/causal.h"
#include "attend/cuda/variant.cuh"
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/tensor_map.h"

namespace pith::cuda {

/// Rows with weights of their own, or that a query does not see because they are too old, cost the
/// others time in one kernel: calls that have some have theirs. Calls with capped scores have one
/// for rows of all kinds.
enum class ChunkKind { kPlain, kWeighted, kBounded, kCapped };

/// The parameters of a kernel. One span, as an exact prompt's: a block has one item, and what spans
/// and items take of a tile's time (a tenth) is not there.
template <int kHeadDim, ChunkKind kOfRows, bool kOneSpan>
struct ChunkForm {
  static constexpr int D = kHeadDim;
  static constexpr ChunkKind kKind = kOfRows;
  static constexpr bool kOne = kOneSpan;
  static constexpr bool kCapped = kKind == ChunkKind::kCapped;
  static constexpr bool kWeighted = kKind == ChunkKind::kWeighted || kCapped;
  static constexpr bool kBounded = kKind == ChunkKind::kBounded || kCapped;
  static constexpr int kReaders = 2;  ///< warpgroups of 64 queries
  static constexpr int kQueries = 64 * kReaders, kThreads = 128 * (1 + kReaders);
  /// Rows of a tile: sums of 256 channels leave registers for half.
  static constexpr int kColumns = D > 128 ? 64 : 128;
  static constexpr int kStages = 2;  ///< tiles of keys, and of values, in shared memory
  static constexpr int kReaderRegisters = 240, kCopierRegisters = 24;
};

/// A span as the kernels see it.
struct ChunkSpan {
  CUtensorMap k, v;
  int rows, before, from;
  float shift;           ///< of all its scores, in units of log2
  const float* weights;  // [G, weights_stride], or null
  size_t weights_stride;
};

/// A kernel's parameters.
struct ChunkParams {
  CUtensorMap q;
  ChunkSpan spans[kMostChunkSpans];
  CausalCall call;
  SoftCap cap;
  int count;   ///< of spans
  int blocks;  ///< of queries, of each head

  __device__ int items() const { return call.query_heads * blocks; }
};

/// A block's shared memory.
template <class Form>
struct ChunkSpace {
  static constexpr int D = Form::D, kStages = Form::kStages;
  static constexpr int kQueryBytes = Form::kQueries * 2 * D, kTileBytes = Form::kColumns * 2 * D;
  /// A tile's keys are free before its weights are: those of the tile after next come to others.
  static constexpr int kWeightStages = 2 * kStages;

  struct Barriers {
    SharedBarrier q_full, q_free;
    SharedBarrier k_full[kStages], k_free[kStages], v_full[kStages], v_free[kStages];
  };
  static constexpr size_t kTiles = kQueryBytes + size_t{2} * kStages * kTileBytes;
  static constexpr size_t kWeights =
      Form::kWeighted ? kWeightStages * Form::kColumns * sizeof(float) : 0;
  static constexpr size_t kBytes = kTiles + sizeof(Barriers) + kWeights + 1024;

  char* shared;  // a multiple of 1024

  __device__ static ChunkSpace make() {
    auto* unaligned = launched_shared<char>();
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(unaligned));
    return {unaligned + (1024 - at % 1024) % 1024};
  }
  __device__ char* q() const { return shared; }
  __device__ char* k(int stage) const { return shared + kQueryBytes + stage * kTileBytes; }
  __device__ char* v(int stage) const { return k(kStages + stage); }
  __device__ Barriers& barriers() const { return *reinterpret_cast<Barriers*>(shared + kTiles); }
  /// Of the rows of the block's `count`-th tile, in units of log2.
  __device__ float* weights(uint32_t count) const {
    return reinterpret_cast<float*>(shared + kTiles + sizeof(Barriers)) +
           count % kWeightStages * Form::kColumns;
  }

  __device__ void init() const {
    constexpr int kWarps = Form::kReaders * 4;  // each reading warp frees alone
    Barriers& b = barriers();
    b.q_full.init(1);
    b.q_free.init(kWarps);
    for (int i = 0; i < kStages; ++i) {
      b.k_full[i].init(Form::kWeighted ? 1 + kWarp : 1);
      b.v_full[i].init(1);
      b.k_free[i].init(kWarps);
      b.v_free[i].init(kWarps);
    }
    publish_barriers();
  }
};

/// 128 queries of one head, and the tiles that they see.
template <class Form>
struct ChunkWork {
  const ChunkParams& p;
  int head, kv_head, first_query;
  int tiles = 0;  // of all spans

  /// The last queries see most rows: they come first. Heads that share rows come together.
  __device__ ChunkWork(const ChunkParams& params, int item) : p(params) {
    head = item % p.call.query_heads;
    kv_head = head / (p.call.query_heads / p.call.kv_heads);
    first_query = (p.blocks - 1 - item / p.call.query_heads) * Form::kQueries;
    for (int i = 0; i < (Form::kOne ? 1 : p.count); ++i)
      tiles += max(0, end_tile(p.spans[i]) - first_tile(p.spans[i]));
  }
  __device__ int end_tile(const ChunkSpan& span) const {
    const int last = min(first_query + Form::kQueries, p.call.tokens) - 1;
    const int seen = span.before < 0 ? span.rows : min(span.rows, span.before + last + 1);
    return (seen + Form::kColumns - 1) / Form::kColumns;
  }
  __device__ int first_tile(const ChunkSpan& span) const {
    return Form::kBounded ? max(0, span.from + first_query) / Form::kColumns : 0;
  }
};

/// Calls f(item) for each of a block's items. Blocks take them in turn, back and forth: the most
/// work comes first, so that each block has about as much.
template <class Form, class F>
__device__ inline void for_each_item(const ChunkParams& p, const F& f) {
  if constexpr (Form::kOne) return f(static_cast<int>(blockIdx.x));
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  for (int first = 0, turn = 0; first < p.items(); first += blocks, turn ^= 1) {
    const int item = first + (turn ? blocks - 1 - block : block);
    if (item < p.items()) f(item);
  }
}

/// Goes through those tiles: from the last of the last span to the first of the first.
template <class Form>
struct TileWalk {
  int span, tile, first;

  __device__ explicit TileWalk(const ChunkWork<Form>& work) : span(Form::kOne ? 1 : work.p.count) {
    enter(work);
  }
  /// There must be a next one.
  __device__ void next(const ChunkWork<Form>& work) {
    if (--tile < first && !Form::kOne) enter(work);
  }

 private:
  /// The next span of which a query sees something.
  __device__ void enter(const ChunkWork<Form>& work) {
    do {
      const ChunkSpan& s = work.p.spans[--span];
      tile = work.end_tile(s) - 1;
      first = work.first_tile(s);
    } while (!Form::kOne && tile < first);
  }
};

/// The work of one thread of the copying warpgroup.
template <class Form>
struct ChunkCopier {
  static constexpr int D = Form::D;
  const ChunkSpace<Form>& space;
  const ChunkParams& p;
  RingPlace<Form::kStages> k_at, v_at;
  uint32_t works = 0;  // done

  /// A tile of 64 channels after the other.
  __device__ void copy(char* to, const CUtensorMap& map, BoxAt at, int rows,
                       SharedBarrier& full) const {
    full.arrive_expecting(rows * 2 * D);
#pragma unroll
    for (int i = 0; i < D / 64; ++i)
      copy_box(to + i * 128 * rows, map, {64 * i, at.row, at.head}, full);
  }
  __device__ void queries(const ChunkWork<Form>& work) {
    auto& b = space.barriers();
    if (works > 0) b.q_free.wait((works - 1) % 2);
    ++works;
    copy(space.q(), p.q, {0, work.first_query, work.head}, Form::kQueries, b.q_full);
  }
  __device__ void keys(const ChunkSpan& span, int tile, int head) {
    auto& b = space.barriers();
    const int stage = k_at.stage();
    if (k_at.count >= Form::kStages) b.k_free[stage].wait(k_at.phase() ^ 1);
    copy(space.k(stage), span.k, {0, tile * Form::kColumns, head}, Form::kColumns, b.k_full[stage]);
    ++k_at.count;
  }
  __device__ void values(const ChunkSpan& span, int tile, int head) {
    auto& b = space.barriers();
    const int stage = v_at.stage();
    if (v_at.count >= Form::kStages) b.v_free[stage].wait(v_at.phase() ^ 1);
    copy(space.v(stage), span.v, {0, tile * Form::kColumns, head}, Form::kColumns, b.v_full[stage]);
    ++v_at.count;
  }
  /// In the order in which they are read. The next queries and keys come while the last tiles are
  /// still worked on.
  __device__ void run() {
    for (int i = Form::kOne ? 0 : p.count - 1; i >= 0; --i) {
      prefetch_map(p.spans[i].k);
      prefetch_map(p.spans[i].v);
    }
    for_each_item<Form>(p, [&](int item) {
      const ChunkWork<Form> work(p, item);
      if (work.tiles == 0) return;
      TileWalk<Form> walk(work);
      queries(work);
      keys(p.spans[walk.span], walk.tile, work.kv_head);
      for (int left = work.tiles; left > 0; --left) {
        const int span = walk.span, tile = walk.tile;
        if (left > 1) {
          walk.next(work);
          keys(p.spans[walk.span], walk.tile, work.kv_head);
        }
        values(p.spans[span], tile, work.kv_head);
      }
    });
  }
};

/// The work of a warp beside it where rows have weights: they are numbers of any alignment, which
/// bulk copies do not take.
template <class Form>
struct ChunkWeigher {
  static constexpr int kOfLane = Form::kColumns / kWarp;
  const ChunkSpace<Form>& space;
  const ChunkParams& p;
  RingPlace<Form::kStages> at;

  __device__ void run() {
    for_each_item<Form>(p, [&](int item) {
      const ChunkWork<Form> work(p, item);
      if (work.tiles == 0) return;
      TileWalk<Form> walk(work);
      for (int left = work.tiles; left > 0; --left) {
        tile(p.spans[walk.span], walk.tile, work.kv_head);
        if (left > 1) walk.next(work);
      }
    });
  }
  __device__ void tile(const ChunkSpan& span, int tile, int head) {
    auto& b = space.barriers();
    const int lane = static_cast<int>(threadIdx.x) % kWarp, first = tile * Form::kColumns + lane;
    float x[kOfLane];
    if (span.weights) {
      const float* from = span.weights + head * span.weights_stride;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i)
        x[i] = first + i * kWarp < span.rows ? from[first + i * kWarp] * kLog2e : 0;
    }
    const int stage = at.stage();
    if (at.count >= Form::kStages) b.k_free[stage].wait(at.phase() ^ 1);
    if (span.weights) {
      float* to = space.weights(at.count) + lane;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) to[i * kWarp] = x[i];
    }
    b.k_full[stage].arrive();
    ++at.count;
  }
};

template <class Form>
ChunkParams chunk_params(const CausalCall& call, std::span<const CausalSpan> spans) {
  constexpr size_t kRow = size_t{2} * Form::D;
  constexpr int64_t kFirst = -(int64_t{1} << 30);
  const auto heads = static_cast<size_t>(call.query_heads);
  ChunkParams p;
  for (const CausalSpan& span : spans) {
    const auto rows = [&](const void* data) {
      const HeadRows of{data,
                        call.dtype,
                        Form::D,
                        static_cast<size_t>(span.rows),
                        kRow,
                        static_cast<size_t>(call.kv_heads),
                        call.kv_heads > 1 ? span.head_stride * 2 : kRow};
      return tensor_map(of, Form::kColumns);
    };
    p.spans[&span - spans.data()] = {rows(span.keys),
                                     rows(span.values),
                                     static_cast<int>(span.rows),
                                     static_cast<int>(span.before),
                                     static_cast<int>(std::max(span.from, kFirst)),
                                     span.log_weight * kLog2e,
                                     span.log_weights,
                                     span.weights_stride};
  }
  const HeadRows queries{call.q,       call.dtype, Form::D, static_cast<size_t>(call.tokens),
                         heads * kRow, heads,      kRow};
  p.q = tensor_map(queries, Form::kQueries);
  p.call = call;
  p.cap = SoftCap::of(call.soft_cap, 1 / std::sqrt(static_cast<float>(Form::D)));
  p.count = static_cast<int>(spans.size());
  p.blocks = (call.tokens + Form::kQueries - 1) / Form::kQueries;
  return p;
}

}  // namespace pith::cuda
