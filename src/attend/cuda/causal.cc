#include "attend/cuda/causal.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/device.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

bool suits_wgmma(const CausalSpan& span) {
  return !span.heads.rows && !span.heads.begins && span.head_stride % 8 == 0 &&
         aligned(span.keys) && aligned(span.values);
}

/// A launch for all that go together, or for one.
void attend(CausalCall call, std::span<const CausalSpan> spans, bool hopper, cudaStream_t stream) {
  const bool last = call.last;
  while (!spans.empty()) {
    call.check(spans.front());
    const size_t count = hopper ? call.together(spans) : 0, done = std::max<size_t>(count, 1);
    call.last = last && done == spans.size();
    if (count > 0) {
      launch_chunk_wgmma(call, spans.first(count), stream);
    } else {
      launch_chunk_mma(call, spans.front(), stream);
    }
    call.first = false;
    spans = spans.subspan(done);
  }
}

}  // namespace

void CausalCall::check(const CausalSpan& span) const {
  const bool known = (head_dim == 64 || head_dim == 128 || head_dim == 256) && kv_heads > 0 &&
                     query_heads > 0 && query_heads % kv_heads == 0 && tokens > 0 &&
                     (dtype == DType::kF16 || dtype == DType::kBF16) && span.rows > 0 &&
                     span.rows < (int64_t{1} << 30) && span.from < (int64_t{1} << 30) &&
                     !(span.bounded(tokens) && span.log_weights);
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

size_t CausalCall::together(std::span<const CausalSpan> spans) const {
  if (!aligned(q)) return 0;
  bool weighted = false, slides = false;
  size_t count = 0;
  for (const CausalSpan& span : spans.first(std::min(spans.size(), kMostChunkSpans))) {
    check(span);
    weighted |= span.log_weights != nullptr;
    slides |= span.bounded(tokens);
    if (!suits_wgmma(span) || (weighted && slides)) break;
    ++count;
  }
  return count;
}

void attend_chunk(const CausalCall& call, std::span<const CausalSpan> spans, cudaStream_t stream) {
  attend(call, spans, device_info().wgmma(), stream);
}

void attend_chunk_mma(const CausalCall& call, std::span<const CausalSpan> spans,
                      cudaStream_t stream) {
  attend(call, spans, false, stream);
}

void attend_chunk_wgmma(const CausalCall& call, std::span<const CausalSpan> spans,
                        cudaStream_t stream) {
  attend(call, spans, true, stream);
}

void ChunkAttention::flush() { attend(false); }

void ChunkAttention::finish() { attend(true); }

void ChunkAttention::attend(bool last) {
  if (spans_.empty()) return;
  call_.last = last;
  attend_chunk(call_, spans_, stream_);
  call_.first = false;
  spans_.clear();
}

}  // namespace pith::cuda
