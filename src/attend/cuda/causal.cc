#include "attend/cuda/causal.h"

#include <fmt/format.h>

#include <algorithm>

#include "pith/error.h"

namespace pith::cuda {
namespace {

/// Rows whose weights Hopper's kernel has room for in shared memory, beside its tiles.
int64_t most_weighted(int head_dim) { return head_dim > 128 ? 8192 : 16384; }

}  // namespace

void CausalCall::check() const {
  const bool known = (head_dim == 64 || head_dim == 128 || head_dim == 256) && kv_heads > 0 &&
                     query_heads > 0 && query_heads % kv_heads == 0 && tokens > 0 &&
                     (dtype == DType::kF16 || dtype == DType::kBF16) && span.rows > 0 &&
                     span.rows < (int64_t{1} << 30) && span.from < (int64_t{1} << 30) &&
                     !(bounded() && span.log_weights);
  if (known) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format(
          "attention of {} queries over {} rows, {} query and {} KV heads, head_dim "
          "{}, {}, from row {} on{} on the GPU; it takes head_dim 64, 128 or 256, f16 or bf16 "
          "rows, query heads that are a multiple of the KV heads, and no weights of rows "
          "where a window slides",
          tokens, span.rows, query_heads, kv_heads, head_dim, to_string(dtype),
          std::max<int64_t>(span.from, 0), span.log_weights ? ", weighted," : ""));
}

bool CausalCall::suits_wgmma() const {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const bool weights_fit = !span.log_weights || span.rows <= most_weighted(head_dim);
  return weights_fit && !span.heads.rows && !span.heads.begins && span.head_stride % 8 == 0 &&
         aligned(q) && aligned(span.keys) && aligned(span.values);
}

}  // namespace pith::cuda
