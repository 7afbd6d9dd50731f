#pragma once
// A prompt that is read exactly, a layer at a time, on any device: its blocks, and its memory.

#include <cstddef>
#include <vector>

#include "pith/device.h"
#include "pith/model.h"
#include "pith/policy.h"

namespace pith {

/// Tokens [first, first + count) of a prompt, which go through a layer together.
struct PromptRange {
  size_t first = 0, count = 0;
};

/// Those of `tokens` tokens, of at most about `most` each.
std::vector<PromptRange> prompt_blocks(size_t tokens, size_t most);

/// Bytes that reading `tokens` tokens takes at most, beside what the cache comes to hold.
size_t prompt_bytes(const ModelConfig& config, const Policy& policy, size_t tokens, Device device);

}  // namespace pith
