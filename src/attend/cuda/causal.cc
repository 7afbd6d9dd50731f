#include "attend/cuda/causal.h"

#include <fmt/format.h>

#include <algorithm>

#include "pith/error.h"

namespace pith::cuda {

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

}  // namespace pith::cuda
