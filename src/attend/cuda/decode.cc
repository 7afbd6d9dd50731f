#include "attend/cuda/decode.h"

#include <fmt/format.h>

#include "attend/cuda/code_rows.h"
#include "pith/error.h"

namespace pith::cuda {

void DecodeShape::check() const {
  if (kv_heads > 0 && query_heads > 0 && query_heads % kv_heads == 0 && sequences > 0 &&
      spans > 0 && (head_dim == 64 || head_dim == 128 || head_dim == 256)) {
    return;
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("decode attention on the GPU was asked for {} sequences, {} query and {} "
                  "KV heads, head_dim {}, {} spans; it takes head_dim 64, 128 or 256, at least "
                  "one of each, and query heads that are a multiple of the KV heads",
                  sequences, query_heads, kv_heads, head_dim, spans));
}

void DecodeCall::check() const {
  shape.check();
  if (dtype == DType::kF16 || dtype == DType::kBF16) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("decode attention on the GPU was asked for queries and dense rows in {}; "
                          "it takes f16 and bf16",
                          to_string(dtype)));
}

int DecodeShape::query_blocks() const {
  return (query_heads / kv_heads + kDecodeQueries - 1) / kDecodeQueries;
}

DecodeScratch::DecodeScratch(MemoryCounter& counter, const DecodeShape& shape, cudaStream_t stream,
                             size_t calls)
    : blocks_(device_info().multiprocessors) {
  shape.check();
  const size_t heads = shape.heads();
  partials_ = DeviceArray<float>(counter, MemoryKind::kScratch,
                                 calls * (blocks_ + heads) * static_cast<size_t>(shape.part_size()),
                                 stream);
  arrivals_ = DeviceArray<int>(counter, MemoryKind::kScratch, calls * heads, stream);
  check(cudaMemsetAsync(arrivals_.data(), 0, calls * heads * sizeof(int), stream),
        "decode scratch");
}

}  // namespace pith::cuda
