#pragma once
// The keys and values that a model makes of a text, for what is fitted to them.

#include <optional>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "pith/model.h"

namespace pith {

/// Of one layer, in the order of the tokens.
struct KvRows {
  std::vector<float> keys, values;  // [T, G, D], keys before RoPE
};

/// Runs the text exactly, in pieces of `piece` tokens that do not see each other. Nothing if
/// `progress` asked to stop. Memory: 2 L G D floats a token.
std::optional<std::vector<KvRows>> collect_kv(const Context& context, const Model& model,
                                              std::span<const int32_t> tokens, size_t piece,
                                              const Progress& progress);

}  // namespace pith
