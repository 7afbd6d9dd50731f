#pragma once
// One layer under methods that programs add: random rows, and a cache for them.

#include <memory>
#include <string>
#include <vector>

#include "core/philox.h"
#include "pith/layer_cache.h"

namespace pith::test {

inline constexpr int kHeads = 2, kDim = 16;
inline constexpr size_t kTokens = 200;

/// [kTokens, kHeads, kDim]
inline std::vector<float> random_rows(uint32_t stream) {
  const Philox random(7, stream, 0);
  std::vector<float> x(kTokens * kHeads * kDim);
  for (size_t i = 0; i < x.size(); ++i) x[i] = random.uniform(i) - 0.5f;
  return x;
}

inline RowsView view(const std::vector<float>& x, size_t first = 0) {
  return {x.data() + first * kHeads * kDim, DType::kF32, kHeads * kDim, kDim};
}

inline LayerCacheOptions layer_options(const std::string& policy) {
  return {.policy = Policy::parse(policy),
          .query_heads = kHeads,
          .kv_heads = kHeads,
          .head_dim = kDim,
          .context = kTokens};
}

inline LayerCache layer_of(const std::string& policy, int threads = 1) {
  return LayerCache(std::make_shared<Runtime>(RuntimeOptions{.threads = threads}),
                    layer_options(policy));
}

}  // namespace pith::test
