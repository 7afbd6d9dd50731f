#pragma once
// A block's way through the lists of rows of a decode launch, for kernels that keep something of a
// head in shared memory or registers.

#include "attend/cuda/decode_parts.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {

/// A head's share of a block.
struct HeadShare {
  int head;
  HeadOutput output;
  const DeviceSpan* spans;
  int begin, end;  // the block's tiles, counted from the head's first
};

/// Calls f(share, cut) for the heads that the block has tiles of; `ends`: Cut::bytes of shared
/// memory. All threads call it.
template <int D, class Tiles, class F>
__device__ inline void for_own_heads(const DecodeParams& p, int* ends, const F& f) {
  const auto spans_of = [&](int head) { return p.spans + head / p.query_blocks * p.span_count; };
  const Cut cut = Cut::make(
      ends, p.heads, [&](int head) { return tiles_of_head<Tiles>(spans_of(head), p.span_count); });
  const int block = blockIdx.x;
  if (block >= cut.blocks) return;
  const int begin = cut.first_tile(block), end = cut.first_tile(block + 1);
  for (int head = 0; head < p.heads; ++head) {
    const int first = cut.ends[head], last = cut.ends[head + 1];
    const bool empty = first == last;
    if (empty ? block != 0 : (last <= begin || first >= end)) continue;
    const HeadOutput output = output_of<D>(p, head);
    if (empty) {
      write_nothing_seen<D>(output);
    } else {
      f(HeadShare{head, output, spans_of(head), begin - first, end - first}, cut);
    }
  }
}

/// q f32 [8, D] in shared memory <- the share's queries, scaled; no barrier.
template <class T, int D>
__device__ inline void load_queries(float* q, const DecodeParams& p, const HeadShare& share) {
  const T* from =
      static_cast<const T*>(p.q) + static_cast<size_t>(query_head_of(p, share.head)) * D;
  for (int i = threadIdx.x; i < kQueries * D; i += blockDim.x) {
    q[i] = i < share.output.queries * D ? to_float(from[i]) * p.scale : 0;
  }
}

}  // namespace pith::cuda
