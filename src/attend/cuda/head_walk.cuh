#pragma once
// A block's way through the lists of rows of a decode launch, for kernels that keep something of a
// head in shared memory or registers.

#include "attend/cuda/decode_parts.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {

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
