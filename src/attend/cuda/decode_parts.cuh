#pragma once
// Common to all decode kernels: their arguments, a warp's way through the tiles of a head's spans,
// the end of a block that is done with a head, and a block's way through the lists of rows.

#include "attend/cuda/cut.cuh"
#include "attend/cuda/decode.h"
#include "attend/cuda/decode_groups.h"
#include "attend/cuda/merge.cuh"
#include "attend/cuda/variant.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {

/// A launch has one call, or several of one shape: blocks of one y are one call's.
struct DecodeParams : PlacedParams {
  const void* table;  // what the codec reads beside queries
  float* partials;    // [calls, queries of a list at most, blocks + heads, D + 2]
  int* arrivals;      // [calls, heads]
  float scale;        // of scores, in units of log2
  SoftCap cap;        // of those
  int heads;          // lists of a call: B * G * query_blocks
  int kv_heads;       // B * G
  int query_blocks;   // groups of at most 8 queries that share a KV head
  int group;          // query heads a KV head
  int part;           // numbers of a partial result, of all the queries
  int span_count;
  int blocks;         // of a call, at most
  int tiles_a_block;  // at least; 0: a call is cut over all its blocks
  bool ready;         // see DecodeCall

  /// Of this block's call, in shared memory once note_place() and a barrier were passed: pointers
  /// in registers would be ones that the dense kernel lacks.
  __device__ const DecodePlace& here() const { return shared_place(); }
  /// The last thread, whose warp has less to do before the first row is asked for.
  __device__ void note_place() const {
    if (threadIdx.x != blockDim.x - 1) return;
    DecodePlace& to = shared_place();
    to.q = own(&DecodePlace::q);
    to.out = own(&DecodePlace::out);
    to.log_sum = own(&DecodePlace::log_sum);
    to.sinks = own(&DecodePlace::sinks);
  }
  __device__ const DeviceSpan* spans() const { return own(&DecodePlace::spans); }
  /// Whose rows a list is: nearly always its own number, without a division of thirty instructions.
  __device__ int kv_head_of(int list) const {
    return query_blocks == 1 ? list : list / query_blocks;
  }
  __device__ size_t first_part() const {
    return static_cast<size_t>(blockIdx.y) * static_cast<size_t>(blocks + heads);
  }
  __device__ int* arrivals_of(int head) const { return arrivals + blockIdx.y * heads + head; }

 private:
  static __device__ DecodePlace& shared_place() {
    __shared__ DecodePlace place;
    return place;
  }
  template <class T>
  __device__ T* own(T* DecodePlace::*member) const {
    if (!places) return place.*member;
    const auto* at = reinterpret_cast<const unsigned long long*>(&(places[blockIdx.y].*member));
    return reinterpret_cast<T*>(__ldcg(at));
  }
};

/// The kernel ahead in the stream, which writes the queries and the newest dense rows.
class Predecessor {
 public:
  /// All threads must have called it before they read what it writes, and before they end.
  __device__ void wait() {
    if (!awaited_) wait_for_predecessor();
    awaited_ = true;
  }

 private:
  bool awaited_ = false;
};

inline DecodeParams make_params(const DecodeCall& call, const DecodeScratch& scratch) {
  const DecodeShape& shape = call.shape;
  DecodeParams p{};
  p.place = call;
  p.table = call.table;
  p.partials = scratch.partials();
  p.arrivals = scratch.arrivals();
  const auto dim = static_cast<float>(shape.head_dim);
  p.scale = (shape.scale != 0 ? shape.scale : 1 / sqrtf(dim)) * kLog2e;
  p.cap = SoftCap::of_log2(shape.soft_cap);
  p.group = shape.query_heads / shape.kv_heads;
  p.query_blocks = shape.query_blocks();
  p.part = shape.part_size();
  p.heads = shape.heads();
  p.kv_heads = shape.sequences * shape.kv_heads;
  p.span_count = shape.spans;
  p.blocks = scratch.blocks();
  p.tiles_a_block = call.company.blocks > 0 ? kTilesABlock : 0;
  p.ready = call.ready;
  return p;
}

/// Launches a call's kernel, now or with others like it. Params begin with DecodeParams.
template <class Params>
void launch_call(void (*kernel)(Params), const LaunchShape& block, const Params& params,
                 const DecodeCall& call, cudaStream_t stream, const char* what) {
  LaunchShape shape = block;
  const int blocks = call.company.blocks;
  shape.grid.x =
      static_cast<unsigned>(blocks > 0 ? std::min(blocks, params.blocks) : params.blocks);
  if (!call.company.groups) return launch_early(kernel, shape, params, stream, what);
  static_assert(std::is_trivially_copyable_v<Params>);
  call.company.groups->add({late_kernel(kernel), what, shape, call.company.place}, params);
}

template <class Codec>
__device__ inline int tiles_of(const DeviceSpan& span) {
  int rows = 16;
  if constexpr (Codec::kPresent) {
    if (span.coded) rows = Codec::kRows;
  }
  return (span.rows + rows - 1) / rows;
}

/// Tiles of all spans of a head.
template <class Codec>
__device__ inline int tiles_of_head(const DeviceSpan* spans, int count) {
  int tiles = 0;
#pragma unroll 1
  for (int i = 0; i < count; ++i) tiles += tiles_of<Codec>(spans[i]);
  return tiles;
}

/// A warp's way through the dense tiles of a head's spans: every warps()-th of the block's.
template <class Codec>
struct DenseWalk {
  const DeviceSpan* spans;
  int count;       // spans
  int begin, end;  // the block's tiles, counted from the head's first
  DeviceSpan span{};
  int at = -1;  // which span
  int tile = 0, stop = 0;

  /// The next tile; false at the end.
  __device__ bool next() {
    tile += Codec::warps();
    while (tile >= stop) {
      if (++at >= count) return false;
      span = spans[at];
      const int tiles = tiles_of<Codec>(span);
      stop = span.coded ? 0 : min(end, tiles);
      tile = max(begin, 0) + static_cast<int>(threadIdx.x) / kWarp;
      begin -= tiles;
      end -= tiles;
    }
    return true;
  }
};

/// A warp's way through the coded spans of a head.
struct CodedWalk {
  const DeviceSpan* spans;
  int count;       // spans
  int begin, end;  // the block's tiles, counted from the head's first
  int at = -1;     // which span
  DeviceSpan span{};
  int2 tiles{};        // of it, the warp's first and the block's end
  bool dense = false;  // one that was passed is dense and has tiles for this warp

  /// The next span that has tiles for this warp; false at the end.
  template <class Codec>
  __device__ bool next() {
    while (++at < count) {
      span = spans[at];
      const int all = tiles_of<Codec>(span);
      tiles = {max(begin, 0) + static_cast<int>(threadIdx.x) / kWarp, min(end, all)};
      begin -= all;
      end -= all;
      if (tiles.x >= tiles.y) continue;
      if (span.coded) return true;
      dense = true;
    }
    return false;
  }
};

/// The first query of a list of rows.
__device__ inline int query_head_of(const DecodeParams& p, int head) {
  const int kv_head = p.kv_head_of(head);
  return kv_head * p.group + (head - kv_head * p.query_blocks) * kQueries;
}
__device__ inline int queries_of(const DecodeParams& p, int head) {
  return min(kQueries, p.group - (head - p.kv_head_of(head) * p.query_blocks) * kQueries);
}
template <int D>
__device__ inline HeadOutput output_of(const DecodeParams& p, int head) {
  const int query_head = query_head_of(p, head);
  const DecodePlace& here = p.here();
  return {here.out + static_cast<size_t>(query_head) * D,
          here.log_sum ? here.log_sum + query_head : nullptr, queries_of(p, head),
          here.sinks ? here.sinks + query_head : nullptr};
}

/// A block's last act for a head. Warps put their parts `stride` bytes apart in `shared`.
struct HeadEnd {
  int head;
  char* shared;
  size_t stride;
  int warps;
};
/// The block's part of the head; whoever brings the last one merges them. channel(t, u) as in
/// merge_warps. All threads call it.
template <int D, class Channel>
__device__ inline void end_head(const DecodeParams& p, const Cut& cut, const Running<D>& run,
                                const HeadEnd& end, const Channel& channel) {
  __shared__ bool last;
  // Parts of one head are consecutive: each next one raises the piece's or the head's number.
  float* all = p.partials + p.first_part() * p.part;
  const int apart = (p.blocks + p.heads) * (D + 2);
  merge_warps<D>(all + (cut.own(Cut::kPiece) + end.head) * (D + 2), end.shared, end.stride, run,
                 {queries_of(p, end.head), end.warps, apart}, channel);
  const int count = cut.block_count(end.head);
  if (count > 1) {
    // merge_warps ended with a barrier: one thread's release covers all threads' writes.
    if (threadIdx.x == 0) {
      int* arrivals = p.arrivals_of(end.head);
      last = arrive(arrivals) == count - 1;
      if (last) *arrivals = 0;
    }
    __syncthreads();
    if (!last) return;
  }
  merge_parts<D>(output_of<D>(p, end.head),
                 {all + (cut.first_block(end.head) + end.head) * (D + 2), apart, count},
                 reinterpret_cast<float*>(end.shared));
}
/// Of values in the dense order.
template <int D>
__device__ inline void end_head(const DecodeParams& p, const Cut& cut, const Running<D>& run,
                                const HeadEnd& end) {
  end_head(p, cut, run, end, [](int t, int u) { return channel_of(t, u); });
}

/// A head's share of a block.
struct HeadShare {
  int head;
  int queries;  // that the head's list serves
  const DeviceSpan* spans;
  int begin, end;  // the block's tiles, counted from the head's first
};

/// Shared memory of for_own_heads. Descriptors, up to so many, are read once, together.
template <int kStaged>
constexpr size_t walk_bytes(int heads) {
  return kStaged * sizeof(DeviceSpan) + Cut::bytes(heads);
}

/// Calls f(share, cut) for the heads that the block has tiles of; `shared`: walk_bytes. f waits for
/// the predecessor, and when this returns all threads have. All threads call it.
template <int D, class Tiles, int kStaged, class F>
__device__ inline void for_own_heads(const DecodeParams& p, char* shared, Predecessor& ahead,
                                     const F& f) {
  const int count = p.kv_heads * p.span_count;
  const bool staged = count <= kStaged;
  // Before the predecessor has ended L1 may hold older ones: they come from L2.
  if (!p.ready || !staged) ahead.wait();
  const DeviceSpan* all = p.spans();
  p.note_place();
  if (staged) {
    using Word = unsigned long long;
    static_assert(sizeof(DeviceSpan) % sizeof(Word) == 0);
    const auto* from = reinterpret_cast<const Word*>(all);
    for (int i = threadIdx.x; i < count * static_cast<int>(sizeof(DeviceSpan) / sizeof(Word));
         i += blockDim.x) {
      reinterpret_cast<Word*>(shared)[i] = __ldcg(from + i);
    }
    __syncthreads();
    all = reinterpret_cast<const DeviceSpan*>(shared);
  }
  const auto spans_of = [&](int head) { return all + p.kv_head_of(head) * p.span_count; };
  auto* ends = reinterpret_cast<int*>(shared + kStaged * sizeof(DeviceSpan));
  const Cut cut = Cut::make(ends, {p.heads, p.blocks, p.tiles_a_block}, [&](int head) {
    return tiles_of_head<Tiles>(spans_of(head), p.span_count);
  });
  do {
    for (int head = cut.own(Cut::kFirstHead); head < p.heads; ++head) {
      const int first = cut.ends[head], end = cut.own(Cut::kEnd);
      if (first >= end) break;
      if (first == cut.ends[head + 1]) continue;
      f(HeadShare{head, queries_of(p, head), spans_of(head), cut.own(Cut::kBegin) - first,
                  end - first},
        cut);
    }
  } while (cut.next());
  ahead.wait();
  if (!cut.own(Cut::kGaps) || blockIdx.x != 0) return;
  for (int head = 0; head < p.heads; ++head) {
    if (cut.ends[head] != cut.ends[head + 1]) continue;
    if (spans_of(head)->rows == DeviceSpan::kElsewhere) continue;
    write_nothing_seen<D>(output_of<D>(p, head));
  }
}

/// q f32 [8, D] in shared memory <- so many queries [queries, D], times scale; no barrier.
template <class T, int D>
__device__ inline void load_queries(float* q, const T* from, int queries, float scale) {
  for (int i = threadIdx.x; i < kQueries * D; i += blockDim.x) {
    q[i] = i < queries * D ? to_float(from[i]) * scale : 0;
  }
}
/// The share's.
template <class T, int D>
__device__ inline void load_queries(float* q, const DecodeParams& p, const HeadShare& share) {
  const T* all = static_cast<const T*>(p.here().q);
  load_queries<T, D>(q, all + static_cast<size_t>(query_head_of(p, share.head)) * D, share.queries,
                     p.scale);
}

}  // namespace pith::cuda
