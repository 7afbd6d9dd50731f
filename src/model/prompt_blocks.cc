#include "model/prompt_blocks.h"

#include <algorithm>

#include "select/wide_room.h"

namespace pith {
namespace {

/// The next block of `left` tokens. The last two share the rest, so that none is so short that
/// other kernels would multiply it, or that a selector's last queries (SnapKV: 64) lie in two
/// blocks.
size_t next_block(size_t left, size_t most, size_t unit) {
  const auto whole = [&](size_t n) { return n > unit ? n / unit * unit : n; };
  const size_t block = whole(most);
  if (left <= block) return left;
  if (left >= 2 * block) return block;
  const size_t half = whole(left / 2);
  return left - half > block ? half + unit : half;
}

}  // namespace

std::vector<PromptRange> prompt_blocks(size_t tokens, size_t most, size_t unit) {
  std::vector<PromptRange> blocks;
  for (size_t first = 0, count = 0; first < tokens; first += count) {
    count = next_block(tokens - first, most, unit);
    blocks.push_back({first, count});
  }
  return blocks;
}

size_t prompt_bytes(const ModelConfig& config, PromptReading reading, size_t tokens) {
  if (reading == PromptReading::kChunks) return 0;
  const size_t rows = 2 * static_cast<size_t>(config.kv_heads * config.head_dim);
  // Rows that gather until the selection are stored once more, and once more on their way from
  // one store to another.
  const size_t layers = reading == PromptReading::kOnce ? 3 : 1;
  return tokens * (static_cast<size_t>(config.hidden + config.kv_heads) + layers * rows) *
         sizeof(float);
}

size_t prompt_activations_on_gpu(const ModelConfig& config, size_t ropes, size_t tokens) {
  const auto hidden = static_cast<size_t>(config.hidden),
             dim = static_cast<size_t>(config.head_dim);
  const size_t queries = static_cast<size_t>(config.query_heads) * dim;
  return tokens * (sizeof(float) * (hidden + ropes * dim + queries) + sizeof(uint16_t) * queries);
}

size_t prompt_bytes_on_gpu(const ModelConfig& config, const ResolvedPolicy& policy, size_t tokens) {
  if (policy.prompt() == PromptReading::kChunks) return 0;
  const auto kv_heads = static_cast<size_t>(config.kv_heads);
  const auto dim = static_cast<size_t>(config.head_dim);
  size_t wide = 0;      // scratch of halvings
  bool staged = false;  // rows that are not heavy wait for their body
  for (int l = 0; l < config.layers; ++l) {
    size_t of_layer = 0;
    for (const CohortPolicy& c : policy.layer(l)) {
      const Needs& needs = c.selector.needs;
      staged |= needs.evicts > 0;
      if (needs.body == Needs::Body::kCoreset)
        of_layer += c.heads.size() * wide_coreset_bytes(needs.halves);
    }
    wide = std::max(wide, of_layer);
  }
  // Rows that gather may be codes as well, and given back by these.
  const size_t layers = 1 + (staged ? 1 : 0) + (policy.prompt() == PromptReading::kOnce ? 2 : 0);
  // Partial results; a layer's rows of 16 bits, and numbers beside them.
  const size_t rows = 2 * kv_heads * dim;
  const auto queries = static_cast<size_t>(config.query_heads) * dim;
  return wide + prompt_activations_on_gpu(config, 2, tokens) +
         tokens * (sizeof(float) * queries + layers * 2 * rows + 16 * kv_heads);
}

}  // namespace pith
