#pragma once
// Attention of a chunk of queries on the GPU: over the rows of some spans, causal inside the one
// that holds the chunk's own rows (FlashAttention-2's walk, Dao 2023). Tensor cores; on sm_90 by
// kernels of their own that go through up to 8 spans in one launch, else a launch per span
// continues from those before it. Layers with a sliding window bound what a query sees from below
// too, in kernels of their own: tiles that no query of a block sees are not read.
//
// Cost: 4 D flops a query, head and row seen; rows are read once per 128 queries and query head.
// Decisions: docs/decisions/0231-hoppers-chunk-attention.md.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>
#include <vector>

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

  /// Whether one of `tokens` queries does not see the first row.
  bool bounded(int tokens) const { return from + tokens > 1; }
};

struct CausalCall {
  int query_heads = 0, kv_heads = 0, head_dim = 0;  ///< D: 64, 128 or 256
  int tokens = 0;                                   // T
  DType dtype = DType::kF16;                        ///< of q and rows: kF16 or kBF16
  const void* q = nullptr;                          // [T, H, D], after RoPE
  bool first = true;     ///< nothing was attended to before; else out and log_sum are gone on from
  bool last = true;      ///< then `result` and, if not null, log_sum are written; else out, log_sum
  float* out = nullptr;  // [T, H, D]; needed where not all spans go together
  float* log_sum = nullptr;  // [T, H] logarithm to base 2 of the denominator
  void* result = nullptr;    // [T, H, D] of result_dtype
  DType result_dtype = DType::kF32;
  float soft_cap = 0;            ///< as AttentionVariant's, and these
  const float* sinks = nullptr;  // [H], on the device, or null: they join where `first` is

  /// Throws kUnsupported for what the kernels do not know.
  void check(const CausalSpan& span) const;
  /// How many of the first spans one launch of Hopper's kernel takes: heads that have as many rows,
  /// at addresses that bulk copies know, and rows with weights of their own or that some query does
  /// not see, not both.
  size_t together(std::span<const CausalSpan> spans) const;
};

/// The limits of a launch of Hopper's kernel.
inline constexpr size_t kMostChunkSpans = 8;

/// Attention over all of `spans`, of which there is one at least.
void attend_chunk(const CausalCall& call, std::span<const CausalSpan> spans, cudaStream_t stream);

/// The same on any card, and on sm_90 by Hopper's kernel for what it takes: for tests and benches.
void attend_chunk_mma(const CausalCall& call, std::span<const CausalSpan> spans,
                      cudaStream_t stream);
void attend_chunk_wgmma(const CausalCall& call, std::span<const CausalSpan> spans,
                        cudaStream_t stream);

/// A launch of the kernel for all cards, and of Hopper's, over what it takes together.
void launch_chunk_mma(const CausalCall& call, const CausalSpan& span, cudaStream_t stream);
void launch_chunk_wgmma(const CausalCall& call, std::span<const CausalSpan> spans,
                        cudaStream_t stream);

/// A chunk's attention whose spans come one by one, from the stores that hold their rows.
class ChunkAttention {
 public:
  ChunkAttention(const CausalCall& call, cudaStream_t stream) : call_(call), stream_(stream) {}
  /// Attends to a span, by the next flush() or finish() at the latest: till then its rows stay.
  void add(const CausalSpan& span) { spans_.push_back(span); }
  /// Attends to what was added. Its memory may then be used for something else.
  void flush();
  /// Likewise, and writes the result: what was added last ends the chunk's attention.
  void finish();
  /// Whether nothing was attended to.
  bool none() const { return call_.first && spans_.empty(); }

 private:
  void attend(bool last);

  CausalCall call_;
  cudaStream_t stream_;
  std::vector<CausalSpan> spans_;
};

}  // namespace pith::cuda
