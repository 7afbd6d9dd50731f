#include "model/prompt_pass.h"

#include <algorithm>

namespace pith {
namespace {

// Attention sums its mass over strips of so many queries: blocks of whole strips add the same sums.
constexpr size_t kStrip = 48;

/// The next block of `left` tokens. The last two share the rest, so that none is so short that
/// other kernels would multiply it, or that a selector's last queries (SnapKV: 64) lie in two
/// blocks.
size_t next_block(size_t left, size_t most) {
  const auto whole = [](size_t n) { return n > kStrip ? n / kStrip * kStrip : n; };
  const size_t block = whole(most);
  if (left <= block) return left;
  if (left >= 2 * block) return block;
  const size_t half = whole(left / 2);
  return left - half > block ? half + kStrip : half;
}

}  // namespace

PromptPass::PromptPass(Forward& forward, const Context& context, const Model& model,
                       const KvCache& cache, std::span<const int32_t> tokens, bool ends)
    : forward_(forward),
      config_(model.config()),
      tokens_(tokens.begin(), tokens.end()),
      first_position_(static_cast<int64_t>(cache.tokens(0))),
      ends_(ends) {
  for (size_t first = 0, count = 0; first < tokens.size(); first += count) {
    count = next_block(tokens.size() - first, forward.max_chunk());
    blocks_.push_back({first, count});
  }
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

size_t PromptPass::bytes(const ModelConfig& config, const Policy& policy, size_t tokens) {
  if (policy.prompt == PromptReading::kChunks) return 0;
  const auto hidden = static_cast<size_t>(config.hidden);
  const auto kv_heads = static_cast<size_t>(config.kv_heads);
  const size_t rows = 2 * kv_heads * static_cast<size_t>(config.head_dim);
  // Rows that gather until the selection are stored once more, and once more on their way from
  // one store to another.
  const size_t layers = policy.prompt == PromptReading::kOnce ? 3 : 1;
  return tokens * (hidden + layers * rows + kv_heads) * sizeof(float);
}

void PromptPass::advance(KvCache& cache) {
  const int layer = static_cast<int>(done_ / blocks_.size());
  // No structured binding: the lambda below captures both, which clang 14 refuses.
  const Block& block = blocks_[done_ % blocks_.size()];
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
