#include "attend/cuda/prefill.h"

#include <fmt/format.h>

#include "pith/error.h"

namespace pith::cuda {
namespace {

// Row numbers and weights of a chunk's list lie in shared memory beside the tiles.
constexpr int kMostListRows = 8192;

}  // namespace

void PrefillCall::check() const {
  const bool known = kv_heads > 0 && query_heads > 0 && query_heads % kv_heads == 0 &&
                     query_heads <= 65535 && (head_dim == 64 || head_dim == 128) &&
                     (dtype == DType::kF16 || dtype == DType::kBF16) && chunk_count > 0 &&
                     most_queries > 0 && most_rows > 0 && most_rows <= kMostListRows &&
                     most_segments <= kMostSegments && q.row_stride % 8 == 0 &&
                     q.head_stride % 8 == 0 && k.row_stride % 8 == 0 && k.head_stride % 8 == 0 &&
                     v.row_stride % 8 == 0 && v.head_stride % 8 == 0;
  if (known) return;
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("prefill attention on the GPU was asked for {} query and {} KV heads, "
                  "head_dim {}, {}, {} rows a query; it takes head_dim 64 or 128, f16 or "
                  "bf16, at most {} rows, strides that are multiples of 8",
                  query_heads, kv_heads, head_dim, to_string(dtype), most_rows, kMostListRows));
}

int PrefillCall::pack() const {
  const int group = query_heads / kv_heads;
  for (const int n : {8, 4, 2}) {
    if (group % n == 0) return n;
  }
  return 1;
}

void prefill_chunks(const PrefillCall& call, cudaStream_t stream) {
  call.check();
  device_info().major == 9 ? prefill_chunks_wgmma(call, stream) : prefill_chunks_mma(call, stream);
}

}  // namespace pith::cuda
