#pragma once
// Prefill attention on the GPU over lists of rows: a chunk of queries sees a weighted list of
// earlier rows (a coreset as it stood before the chunk) and, causally, the exact rows since. Lists
// are row numbers, so that snapshots of a coreset cost no copies: rows are gathered from where
// prefill wrote them.
//
// Cost of a query that sees r rows: 4 r D operations on the tensor cores. sm_80 and newer; sm_90
// has a kernel of its own (wgmma).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device.h"
#include "pith/dtype.h"

namespace pith::cuda {

/// Rows pool[head][first .. first + count) of one weight.
struct PrefillSegment {
  int32_t first = 0, count = 0;
  float log_weight = 0;
};

inline constexpr int kMostSegments = 32;  // of a chunk

/// Queries first_query .. first_query + queries - 1 see their segments, and rows exact_from .. own.
struct PrefillChunk {
  int32_t first_query = 0, queries = 0;
  int32_t first_segment = 0, segments = 0;
  int32_t exact_from = 0;
};

/// Rows of heads: row t of head h is at t * row_stride + h * head_stride, in numbers.
struct StridedHeads {
  const void* data = nullptr;
  size_t row_stride = 0, head_stride = 0;
};

struct PrefillCall {
  DType dtype = DType::kBF16;  ///< of q, k, v and out: kF16 or kBF16
  int query_heads = 0;         // H
  int kv_heads = 0;            // G
  int head_dim = 0;            // D: 64 or 128
  float scale = 0;             ///< of q.k; 0 = 1/sqrt(D)
  StridedHeads q, k, v;
  void* out = nullptr;                       // strides of q
  const PrefillChunk* chunks = nullptr;      // [chunk_count], on the device
  const PrefillSegment* segments = nullptr;  // on the device
  const int32_t* pool = nullptr;             // [G, pool_stride] row numbers, on the device
  size_t pool_stride = 0;
  int chunk_count = 0;
  int most_queries = 0;   ///< of a chunk
  int most_segments = 0;  ///< of a chunk
  int most_rows = 0;      ///< that a query sees: its segments' and the exact ones

  /// Throws kInvalidArgument for shapes and dtypes that the kernels do not know.
  void check() const;
  /// Query heads of a KV head that share a tile: 1, 2, 4 or 8.
  int pack() const;
};

/// One launch over all chunks and heads.
void prefill_chunks(const PrefillCall& call, cudaStream_t stream);

/// The kernels behind it, for the tests.
void prefill_chunks_mma(const PrefillCall& call, cudaStream_t stream);
void prefill_chunks_wgmma(const PrefillCall& call, cudaStream_t stream);

}  // namespace pith::cuda
