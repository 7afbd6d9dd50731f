#pragma once
// Attention of a chunk of queries on the GPU: the rows of one span after the other, each span one
// launch that goes on from what the launches before it found (FlashAttention-2's walk, Dao 2023).
// Tensor cores, on sm_90 by kernels of its own; causal inside the span that holds the chunk's own
// rows. Layers with a sliding window bound what a query sees from below too, in kernels of their
// own: tiles that no query of a block sees are not read.
//
// Cost: 4 D flops a query, head and row seen; rows are read once per 128 queries and query head.
// Decisions: docs/decisions/0231-hoppers-chunk-attention.md.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/ragged.h"
#include "pith/dtype.h"

namespace pith::cuda {

/// Dense rows of all KV heads of a layer.
struct CausalSpan {
  const void* keys = nullptr;    // [G, head_stride / D, D]
  const void* values = nullptr;  // likewise
  size_t head_stride = 0;        ///< numbers between heads
  int64_t rows = 0;
  /// Query t sees the first `before` + t + 1 rows; -1: all of them.
  int64_t before = -1;
  float log_weight = 0;                ///< added to the scores
  const float* log_weights = nullptr;  // [G, weights_stride] added too, if not null
  size_t weights_stride = 0;           ///< 0: the same for all heads
  /// Of each head's rows, where they differ, `head_rows_before` come before the span's and at most
  /// `rows` are in it.
  RaggedHeads heads = {};
  int64_t head_rows_before = 0;
  /// Query t sees no row before `from` + t.
  static constexpr int64_t kFromTheFirst = -(int64_t{1} << 40);
  int64_t from = kFromTheFirst;
};

struct CausalCall {
  int query_heads = 0, kv_heads = 0, head_dim = 0;  ///< D: 64, 128 or 256
  int tokens = 0;                                   // T
  DType dtype = DType::kF16;                        ///< of q and rows: kF16 or kBF16
  const void* q = nullptr;                          // [T, H, D], after RoPE
  CausalSpan span;
  bool first = true;     ///< nothing was attended to before; else out and log_sum are gone on from
  bool last = true;      ///< then `result` and, if not null, log_sum are written; else out, log_sum
  float* out = nullptr;  // [T, H, D]
  float* log_sum = nullptr;  // [T, H] logarithm to base 2 of the denominator
  void* result = nullptr;    // [T, H, D] of result_dtype
  DType result_dtype = DType::kF32;

  /// Whether some query does not see the span's first row.
  bool bounded() const { return span.from + tokens > 1; }
  /// Whether Hopper's kernel takes it: heads that have as many rows, at addresses that bulk copies
  /// know, and not more rows with weights of their own than it has room for.
  bool suits_wgmma() const;
  /// Throws kUnsupported for what the kernel does not know.
  void check() const;
};

void attend_chunk(const CausalCall& call, cudaStream_t stream);

/// The kernels behind it, for the tests. The second takes what suits_wgmma() says, on sm_90.
void attend_chunk_mma(const CausalCall& call, cudaStream_t stream);
void attend_chunk_wgmma(const CausalCall& call, cudaStream_t stream);

}  // namespace pith::cuda
