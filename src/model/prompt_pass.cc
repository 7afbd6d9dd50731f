#include "model/prompt_pass.h"

#include <algorithm>

namespace pith {
PromptPass::PromptPass(Forward& forward, const Context& context, const Model& model,
                       const KvCache& cache, std::span<const int32_t> tokens, bool ends)
    : forward_(forward),
      config_(model.config()),
      tokens_(tokens.begin(), tokens.end()),
      first_position_(static_cast<int64_t>(cache.tokens(0))),
      ends_(ends),
      blocks_(prompt_blocks(tokens.size(), forward.max_chunk())) {
  const auto make = [&](Array<float>& a, size_t count) {
    a = Array<float>(context.memory, MemoryKind::kScratch);
    a.reserve(tokens.size() * count);
    a.resize(tokens.size() * count);
  };
  const auto kv_heads = static_cast<size_t>(config_.kv_heads);
  make(hidden_, static_cast<size_t>(config_.hidden));
  make(k_, kv_heads * static_cast<size_t>(config_.head_dim));
  make(v_, kv_heads * static_cast<size_t>(config_.head_dim));
  for (int layer = 0; layer < config_.layers && mass_.empty(); ++layer)
    if (cache.asks_mass(layer)) make(mass_, kv_heads);
}

void PromptPass::advance(KvCache& cache) {
  const int layer = static_cast<int>(done_ / blocks_.size());
  // No structured binding: the lambda below captures both, which clang 14 refuses.
  const PromptRange& block = blocks_[done_ % blocks_.size()];
  const size_t first = block.first;
  const size_t count = block.count;
  const size_t width = static_cast<size_t>(config_.kv_heads * config_.head_dim);
  if (first == 0) std::ranges::fill(mass_, 0.0f);
  forward_.run_layer({.layer = layer,
                      .tokens = std::span(tokens_).subspan(first, count),
                      .first_position = first_position_ + static_cast<int64_t>(first),
                      .ropes = &cache.ropes(),
                      .hidden = hidden_.data() + first * static_cast<size_t>(config_.hidden),
                      .k = k_.data() + first * width,
                      .v = v_.data() + first * width,
                      .attend = [&](float* out, const float* q) {
                        cache.read(layer, out,
                                   {.q = q,
                                    .k = k_.data(),
                                    .v = v_.data(),
                                    .mass = cache.asks_mass(layer) ? mass_.data() : nullptr,
                                    .tokens = tokens_.size(),
                                    .first = first,
                                    .count = count});
                      }});
  if (first + count == tokens_.size())
    cache.append(layer, {.k = k_.data(),
                         .v = v_.data(),
                         .mass = cache.asks_mass(layer) ? mass_.data() : nullptr,
                         .tokens = tokens_.size(),
                         .ends = ends_});
  ++done_;
}

}  // namespace pith
