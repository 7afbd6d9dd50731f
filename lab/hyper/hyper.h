#pragma once
// HyperAttention (Han et al., "HyperAttention: Long-context Attention in Near-Linear Time", 2024,
// Alg. 1-4), causal by recursion: the first half of the tokens attends to itself, the second to
// itself, and the second to the first without a mask, which is approximated. A library call for
// whole prompts, for comparison.
//
// Without a mask: queries and keys are sorted by a locality-sensitive hash (signs of `bits` random
// projections, read as a Gray code) and cut into blocks; a block of queries attends exactly to the
// keys of the same block, and to `samples` uniformly drawn keys that stand for all others.
// Cost: 2 (block + samples) D multiply-adds per query and level of the recursion, log2(T / least)
// levels, and exact attention over the last `least` tokens at most.

#include <cstddef>
#include <cstdint>

#include "kernels/context.h"

namespace pith {

struct HyperRule {
  size_t block = 256, samples = 256;
  size_t least = 1024;  ///< runs of this many tokens or fewer attend exactly
  uint32_t bits = 7;    ///< projections of the hash, 1 to 31
  uint64_t seed = 0;
};

/// Queries, keys and values of one layer, after RoPE.
struct CausalHeads {
  const float* q = nullptr;  // [T, H, D]
  const float* k = nullptr;  // [T, G, D]
  const float* v = nullptr;  // [T, G, D]
  size_t tokens = 0;         // T
  size_t query_heads = 0, kv_heads = 0, head_dim = 0;
};

/// out [T, H, D]. Scores are scaled by 1/sqrt(D). Throws kInvalidArgument for sizes that do not
/// fit.
void hyper_attention(const Context& context, float* out, const HyperRule& rule,
                     const CausalHeads& heads);

}  // namespace pith
