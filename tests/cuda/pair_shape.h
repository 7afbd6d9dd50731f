#pragma once
// The inputs of the caches that are compared: their shape, how far the two may differ by design,
// rows and queries.

#include <cstdint>
#include <string>
#include <vector>

#include "policy/resolved.h"

namespace pith::cuda {

inline constexpr int kLayers = 2, kQueryHeads = 4, kKvHeads = 2;

inline constexpr uint64_t kModel = 12345;  // its fingerprint

/// `sliding`: of each layer, 0 = it sees all tokens; or none.
inline CacheShape shape_of(int dim, const std::vector<int64_t>& sliding = {}) {
  return {kLayers, kQueryHeads, kKvHeads, dim, sliding, 1000, kModel};
}

/// uniform: up to 31 rows that the CPU has dropped are still there between the GPU's selections.
inline bool selected_late(const std::string& policy) {
  return policy.starts_with("uniform(budget") && policy.find("heavy") == std::string::npos;
}
/// Bytes by which the GPU's payload may be above the CPU's: up to 31 rows of each head are exact.
inline uint64_t late_bytes(int dim) { return uint64_t{31} * kLayers * kKvHeads * 4 * dim; }

/// With `codec` behind the selector.
inline std::string over(const std::string& policy, const std::string& codec) {
  std::string text = policy;
  return text.insert(text.find(')') + 1, "+" + codec);
}
/// Rows that share something are the same on both devices: the selector takes all that leave the
/// window.
inline bool same_groups(const std::string& policy) {
  return !policy.starts_with("uniform") && !policy.starts_with("buzz");
}

/// One layer's numbers for a few tokens.
struct Numbers {
  std::vector<uint16_t> q, k, v;  // [T, H, D], [T, G, D]
};

}  // namespace pith::cuda
