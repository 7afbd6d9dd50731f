#pragma once
// What a block of Hopper's chunk attention (causal_wgmma.cuh) reads: which tiles of rows, where
// they lie in shared memory, and the warpgroup that brings them there.

#include "attend/cuda/causal.h"
#include "attend/cuda/running.cuh"
#include "kernels/cuda/bulk.cuh"
#include "kernels/cuda/launched_shared.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/tensor_map.h"

namespace pith::cuda {

/// Rows with weights of their own, or that a query does not see because they are too old, cost the
/// others time in one kernel: they have theirs.
enum class ChunkKind { kPlain, kWeighted, kBounded };

/// What a kernel is made for.
template <int kHeadDim, ChunkKind kOfRows>
struct ChunkForm {
  static constexpr int D = kHeadDim;
  static constexpr ChunkKind kKind = kOfRows;
  static constexpr bool kWeighted = kKind == ChunkKind::kWeighted;
  static constexpr bool kBounded = kKind == ChunkKind::kBounded;
  static constexpr int kReaders = 2;  ///< warpgroups of 64 queries
  static constexpr int kQueries = 64 * kReaders, kThreads = 128 * (1 + kReaders);
  /// Rows of a tile: sums of 256 channels leave registers for half.
  static constexpr int kColumns = D > 128 ? 64 : 128;
  static constexpr int kStages = 2;  ///< tiles of keys, and of values, in shared memory
  static constexpr int kReaderRegisters = 240, kCopierRegisters = 24;
};

/// A kernel's parameters.
struct ChunkParams {
  CUtensorMap q, k, v;
  CausalCall call;
};

/// A block's shared memory.
template <class Form>
struct ChunkSpace {
  static constexpr int D = Form::D, kStages = Form::kStages;
  static constexpr int kQueryBytes = Form::kQueries * 2 * D, kTileBytes = Form::kColumns * 2 * D;

  struct Barriers {
    SharedBarrier q_full;
    SharedBarrier k_full[kStages], k_free[kStages], v_full[kStages], v_free[kStages];
  };
  static constexpr size_t kTiles = kQueryBytes + size_t{2} * kStages * kTileBytes;
  static size_t bytes(const CausalSpan& span) {
    const auto tiles = static_cast<size_t>((span.rows + Form::kColumns - 1) / Form::kColumns);
    const size_t weights = Form::kWeighted ? tiles * Form::kColumns * sizeof(float) : 0;
    return kTiles + sizeof(Barriers) + weights + 1024;
  }

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
  /// Of all rows, in units of log2; then 0 up to a tile's end.
  __device__ float* weights() const {
    return reinterpret_cast<float*>(shared + kTiles + sizeof(Barriers));
  }

  __device__ void init() const {
    constexpr int kWarps = Form::kReaders * 4;  // each reading warp frees alone
    Barriers& b = barriers();
    b.q_full.init(1);
    for (int i = 0; i < kStages; ++i) {
      b.k_full[i].init(1);
      b.v_full[i].init(1);
      b.k_free[i].init(kWarps);
      b.v_free[i].init(kWarps);
    }
    publish_barriers();
  }
};

/// A block's queries and the tiles that they see, which are read from the last to the first.
template <class Form>
struct ChunkWork {
  int head, kv_head, first_query, rows, before, from, first_tile, end_tile;

  __device__ explicit ChunkWork(const CausalCall& p) {
    // The last queries see most rows: they go first. Heads that share rows go together.
    const int block = static_cast<int>(gridDim.y - 1 - blockIdx.y);
    head = static_cast<int>(blockIdx.x);
    kv_head = head / (p.query_heads / p.kv_heads);
    first_query = block * Form::kQueries;
    rows = static_cast<int>(p.span.rows);
    before = static_cast<int>(p.span.before);
    from = Form::kBounded ? static_cast<int>(p.span.from) : 0;
    const int last_query = min(first_query + Form::kQueries, p.tokens) - 1;
    end_tile = (limit(last_query) + Form::kColumns - 1) / Form::kColumns;
    first_tile = Form::kBounded ? max(0, from + first_query) / Form::kColumns : 0;
  }
  __device__ bool empty() const { return first_tile >= end_tile; }
  /// Query t sees rows unseen(t) .. limit(t) - 1.
  __device__ int limit(int t) const { return before < 0 ? rows : min(rows, before + t + 1); }
  __device__ int unseen(int t) const { return max(0, from + t); }
};

/// What one thread of the copying warpgroup does.
template <class Form>
struct ChunkCopier {
  static constexpr int D = Form::D;
  const ChunkSpace<Form>& space;
  const ChunkParams& p;
  const ChunkWork<Form>& work;
  RingPlace<Form::kStages> k_at, v_at;

  /// A tile of 64 channels after the other.
  __device__ void copy(char* to, const CUtensorMap& map, BoxAt at, int rows,
                       SharedBarrier& full) const {
    full.arrive_expecting(rows * 2 * D);
#pragma unroll
    for (int i = 0; i < D / 64; ++i)
      copy_box(to + i * 128 * rows, map, {64 * i, at.row, at.head}, full);
  }
  __device__ void keys(int tile) {
    auto& b = space.barriers();
    const int stage = k_at.stage();
    if (k_at.count >= Form::kStages) b.k_free[stage].wait(k_at.phase() ^ 1);
    copy(space.k(stage), p.k, {0, tile * Form::kColumns, work.kv_head}, Form::kColumns,
         b.k_full[stage]);
    ++k_at.count;
  }
  __device__ void values(int tile) {
    auto& b = space.barriers();
    const int stage = v_at.stage();
    if (v_at.count >= Form::kStages) b.v_free[stage].wait(v_at.phase() ^ 1);
    copy(space.v(stage), p.v, {0, tile * Form::kColumns, work.kv_head}, Form::kColumns,
         b.v_full[stage]);
    ++v_at.count;
  }
  /// In the order in which they are read.
  __device__ void run() {
    copy(space.q(), p.q, {0, work.first_query, work.head}, Form::kQueries, space.barriers().q_full);
    keys(work.end_tile - 1);
    for (int tile = work.end_tile - 2; tile >= work.first_tile; --tile) {
      keys(tile);
      values(tile + 1);
    }
    values(work.first_tile);
  }
};

template <class Form>
ChunkParams chunk_params(const CausalCall& call) {
  constexpr size_t kRow = size_t{2} * Form::D;
  const CausalSpan& span = call.span;
  const auto heads = static_cast<size_t>(call.query_heads);
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
  const HeadRows queries{call.q,       call.dtype, Form::D, static_cast<size_t>(call.tokens),
                         heads * kRow, heads,      kRow};
  return {tensor_map(queries, Form::kQueries), rows(span.keys), rows(span.values), call};
}

template <class Form>
dim3 chunk_grid(const CausalCall& call) {
  constexpr int kQueries = Form::kQueries;
  return {static_cast<unsigned>(call.query_heads),
          static_cast<unsigned>((call.tokens + kQueries - 1) / kQueries), 1};
}

}  // namespace pith::cuda
