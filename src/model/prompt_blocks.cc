#include "model/prompt_blocks.h"

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

std::vector<PromptRange> prompt_blocks(size_t tokens, size_t most) {
  std::vector<PromptRange> blocks;
  for (size_t first = 0, count = 0; first < tokens; first += count) {
    count = next_block(tokens - first, most);
    blocks.push_back({first, count});
  }
  return blocks;
}

size_t prompt_bytes(const ModelConfig& config, const Policy& policy, size_t tokens, Device device) {
  if (policy.prompt == PromptReading::kChunks) return 0;
  const auto hidden = static_cast<size_t>(config.hidden);
  const auto kv_heads = static_cast<size_t>(config.kv_heads);
  const auto dim = static_cast<size_t>(config.head_dim);
  const size_t rows = 2 * kv_heads * dim;
  if (device == Device::kCuda) {
    // The residual stream; queries, their results in numbers of up to 32 bits and the partial ones;
    // angles of two RoPEs; a layer's rows of 16 bits, and numbers beside them.
    const auto queries = static_cast<size_t>(config.query_heads) * dim;
    return tokens * (4 * hidden + 10 * queries + 8 * dim + 2 * rows + 16 * kv_heads);
  }
  // Rows that gather until the selection are stored once more, and once more on their way from
  // one store to another.
  const size_t layers = policy.prompt == PromptReading::kOnce ? 3 : 1;
  return tokens * (hidden + layers * rows + kv_heads) * sizeof(float);
}

}  // namespace pith
