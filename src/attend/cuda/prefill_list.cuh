#pragma once
// What both prefill kernels share: which queries a block has, and the list of rows that they see.

#include "attend/cuda/prefill.h"
#include "attend/cuda/running.cuh"

namespace pith::cuda {

struct PrefillParams {
  const void* q;
  const void* k;
  const void* v;
  void* out;
  size_t q_row, q_head, k_row, k_head, v_row, v_head;  // strides in bytes
  const PrefillChunk* chunks;
  const PrefillSegment* segments;
  const int32_t* pool;
  size_t pool_stride;
  float scale;    // of scores, in units of log2
  int pack;       // query heads of a tile
  int groups;     // blocks of `pack` heads a KV head
  int tiles;      // of a chunk
  int list_rows;  // room in the list
};

/// Tile row m is query first + m / pack of head first_head + m % pack.
struct QueryTile {
  int first, count;  // queries of the tile
  int first_head, kv_head;
  int weighted;  // rows of the list before the exact ones
  int exact_from;
  int pack;

  __device__ bool empty() const { return count <= 0; }
  /// List rows that tile row m sees; rows past the tile's end repeat the last.
  __device__ int limit(int m) const {
    return weighted + first + min(m / pack, count - 1) - exact_from + 1;
  }
  __device__ int rows() const { return weighted + first + count - exact_from; }
};

template <int kRows>
__device__ inline QueryTile query_tile(const PrefillParams& p, const PrefillChunk& chunk, int tile,
                                       int weighted = 0) {
  const int per_tile = kRows / p.pack;
  QueryTile t;
  t.first = chunk.first_query + tile * per_tile;
  t.count = min(per_tile, chunk.first_query + chunk.queries - t.first);
  t.kv_head = static_cast<int>(blockIdx.y) / p.groups;
  t.first_head = static_cast<int>(blockIdx.y) * p.pack;
  t.weighted = weighted;
  t.exact_from = chunk.exact_from;
  t.pack = p.pack;
  return t;
}

/// Writes the chunk's list, row numbers and log-weights in units of log2, and returns how many rows
/// come before the exact ones. All threads call it, with a barrier to follow. Every thread looks
/// its rows' segments up: walking through the segments in turn would wait for memory twice for each
/// of them.
__device__ inline int make_list(int* numbers, float* weights, const PrefillParams& p,
                                const PrefillChunk& chunk) {
  __shared__ int ends[kMostSegments], froms[kMostSegments];  // from: row 0's place in the pool
  __shared__ float log_weights[kMostSegments];
  const int lane = threadIdx.x;
  if (lane < kMostSegments) {
    PrefillSegment segment;
    if (lane < chunk.segments) segment = p.segments[chunk.first_segment + lane];
    int end = segment.count;
#pragma unroll
    for (int d = 1; d < kMostSegments; d *= 2) {
      const int before = __shfl_up_sync(~0u, end, d);
      if (lane >= d) end += before;
    }
    ends[lane] = end;
    froms[lane] = segment.first - (end - segment.count);
    log_weights[lane] = segment.log_weight * kLog2e;
  }
  __syncthreads();
  const int weighted = ends[kMostSegments - 1], last = chunk.first_query + chunk.queries - 1;
  const int32_t* pool = p.pool + static_cast<int>(blockIdx.y) / p.groups * p.pool_stride;
#pragma unroll 4
  for (int i = threadIdx.x; i < p.list_rows; i += blockDim.x) {
    int s = 0;
#pragma unroll
    for (int step = kMostSegments / 2; step > 0; step /= 2) {
      if (ends[s + step - 1] <= i) s += step;
    }
    const bool inside = i < weighted;
    numbers[i] = inside ? pool[froms[s] + i] : min(chunk.exact_from + i - weighted, last);
    weights[i] = inside ? log_weights[s] : 0;
  }
  return weighted;
}

inline PrefillParams prefill_params(const PrefillCall& call, int rows, int columns) {
  PrefillParams p{};
  p.q = call.q.data;
  p.k = call.k.data;
  p.v = call.v.data;
  p.out = call.out;
  p.q_row = 2 * call.q.row_stride;
  p.q_head = 2 * call.q.head_stride;
  p.k_row = 2 * call.k.row_stride;
  p.k_head = 2 * call.k.head_stride;
  p.v_row = 2 * call.v.row_stride;
  p.v_head = 2 * call.v.head_stride;
  p.chunks = call.chunks;
  p.segments = call.segments;
  p.pool = call.pool;
  p.pool_stride = call.pool_stride;
  p.scale = (call.scale != 0 ? call.scale : 1 / sqrtf(static_cast<float>(call.head_dim))) * kLog2e;
  p.pack = call.pack();
  p.groups = call.query_heads / call.kv_heads / p.pack;
  p.tiles = (call.most_queries * p.pack + rows - 1) / rows;
  p.list_rows = (call.most_rows + columns - 1) / columns * columns;
  return p;
}

}  // namespace pith::cuda
