#include "model/loaders/weights_digest.h"

#include <algorithm>
#include <vector>

namespace pith {
namespace {

template <class T>
void add(DigestStream& stream, const T& number) {
  static_assert(std::is_arithmetic_v<T>);
  stream.add(std::as_bytes(std::span(&number, 1)));
}

void add_bytes(DigestStream& stream, std::span<const std::byte> bytes) {
  if (bytes.size() <= kDigestBlocks * kDigestBlock) return stream.add(bytes);
  const size_t last = bytes.size() - kDigestBlock;
  for (size_t b = 0; b < kDigestBlocks; ++b)
    stream.add(bytes.subspan(last * b / (kDigestBlocks - 1), kDigestBlock));
}

/// Its angles at two positions have all that scales it.
void add_rope(DigestStream& stream, const Rope& rope) {
  std::vector<float> cos(rope.head_dim()), sin(rope.head_dim());
  for (const int64_t position : {int64_t{1}, int64_t{100003}}) {
    rope.angles(cos.data(), sin.data(), position);
    for (const float x : cos) add(stream, x);
    for (const float x : sin) add(stream, x);
  }
}

Digest of_model(const Model::Weights& w) {
  const ModelConfig& c = w.config.model;
  const Digest tensors = digest_of_tensors(w.tensors);
  DigestStream stream;
  add(stream, tensors.low), add(stream, tensors.high);
  stream.add_text(c.architecture);
  for (const int n : {c.layers, c.hidden, c.intermediate, c.query_heads, c.kv_heads, c.head_dim})
    add(stream, n);
  add(stream, c.norm_eps), add(stream, w.config.embedding_scale);
  add(stream, w.config.logit_scale), add(stream, static_cast<int>(w.config.activation));
  if (c.attention_soft_cap > 0) add(stream, c.attention_soft_cap);
  if (w.config.logit_soft_cap > 0) add(stream, w.config.logit_soft_cap);
  for (const int64_t window : c.sliding_window) add(stream, window);
  for (const float factor : w.head_factors) add(stream, factor);
  add_rope(stream, w.rope);
  for (const auto* rope : {&w.short_rope, &w.sliding_rope})
    if (*rope) add_rope(stream, **rope);
  return stream.digest();
}

}  // namespace

Digest digest_of_tensors(const ModelTensors& tensors) {
  DigestStream stream;
  for (const auto& [name, tensor] : tensors.tensors()) {
    stream.add_text(name), stream.add_text(tensor.type_name);
    add(stream, tensor.shape.size());
    for (const size_t n : tensor.shape) add(stream, n);
    add_bytes(stream, {tensor.data, tensor.bytes});
  }
  return stream.digest();
}

const Digest& digest_of_model(const Model::Weights& weights) {
  ModelDigestSlot& slot = *weights.digest;
  std::call_once(slot.once, [&] { slot.digest = of_model(weights); });
  return slot.digest;
}

}  // namespace pith
