#pragma once
// A prompt that is read exactly, a layer at a time, on any device: its blocks, and its memory.

#include <cstddef>
#include <vector>

#include "pith/model.h"
#include "pith/policy.h"
#include "policy/resolved.h"

namespace pith {

/// Tokens [first, first + count) of a prompt, which go through a layer together.
struct PromptRange {
  size_t first = 0, count = 0;
};

/// Tokens that a block has a multiple of, but for the last.
struct PromptUnits {
  /// Attention on the CPU sums its mass over strips of so many queries, and whole strips add the
  /// same sums.
  static constexpr size_t kOnHost = 48;
  /// On the GPU blocks are multiplied alone and attend together; their numbers are aligned.
  static constexpr size_t kOnGpu = 64;
};
/// The blocks of `tokens` tokens, of at most `most` each.
std::vector<PromptRange> prompt_blocks(size_t tokens, size_t most,
                                       size_t unit = PromptUnits::kOnHost);

/// Bytes that reading `tokens` tokens takes at most on the CPU, beside what the cache comes to
/// hold.
size_t prompt_bytes(const ModelConfig& config, PromptReading reading, size_t tokens);
/// Of those on the GPU the activations: the residual stream, angles of `ropes` RoPEs, queries of 16
/// bits and their results, which may have 32.
size_t prompt_activations_on_gpu(const ModelConfig& config, size_t ropes, size_t tokens);
/// As prompt_bytes, on the GPU, where rows are selected by kernels with room of their own.
size_t prompt_bytes_on_gpu(const ModelConfig& config, const ResolvedPolicy& policy, size_t tokens);

}  // namespace pith
