#pragma once
// Thinformer: attention without a mask over 2^g sqrt(n) of n rows, chosen by KH-Compress (Carrell
// et al., "Low-Rank Thinning", 2025, section 4; Compress: Shetty, Dwivedi & Mackey 2022). A library
// call, for whole matrices that are known at once: Express is its causal, streaming successor.
//
// Rows are cut into 4^J runs; each run is a leaf. Four neighbours are joined and halved by kernel
// halving, J times: J is the least with n / 4^J <= 4^g, so that n / 2^J rows stay, between half of
// 2^g sqrt(n) and 2^g sqrt(n). All stand for equally many, so that their weights cancel.
// Cost: 4^(g+1) n D multiply-adds for each of the J = log4(n) - g levels, then the attention.

#include "core/philox.h"
#include "select/halving.h"

namespace pith {

struct ThinformerRule {
  uint32_t inflation = 2;    ///< g
  HalvingRule halving = {};  ///< scale 0 = 1/sqrt(D)
  uint64_t seed = 0;
};

/// Queries and rows of one layer, all known at once.
struct UnmaskedHeads {
  const float* q = nullptr;  // [Tq, H, D]
  const float* k = nullptr;  // [T, G, D]
  const float* v = nullptr;  // [T, G, D]
  size_t queries = 0, rows = 0;
  size_t query_heads = 0, kv_heads = 0, head_dim = 0;
};

/// The rows of KV head `head` that stay, ascending.
std::vector<uint32_t> thinformer_rows(const Context& context, const ThinformerRule& rule,
                                      const UnmaskedHeads& heads, size_t head);
/// out [Tq, H, D] <- every query attends to the rows that stay. Throws kInvalidArgument for head
/// counts that do not fit.
void thinformer_attention(const Context& context, float* out, const ThinformerRule& rule,
                          const UnmaskedHeads& heads);

}  // namespace pith
