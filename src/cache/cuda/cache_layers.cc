#include "cache/cuda/cache_layers.h"

#include <fmt/format.h>

#include <numeric>

#include "cache/cuda/head_state.h"
#include "pith/error.h"

namespace pith::cuda {

size_t CacheLayers::tokens() const {
  size_t most = 0;
  for (const auto& layer : layers_) most = std::max(most, layer->tokens());
  return most;
}

HeadRows CacheLayers::rows(const CacheShape& shape, int layer, int head) const {
  if (layer < first_ || layer >= end() || head < 0 || head >= shape.kv_heads) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("layer {}, KV head {} of a cache with {} layers and {} KV heads", layer,
                            head, shape.layers, shape.kv_heads));
  }
  HeadRows held;
  const HeadRun& run = at(layer).run_of(static_cast<size_t>(head));
  add_rows(held, *run.stores, static_cast<size_t>(head) - run.first);
  std::vector<size_t> order(held.positions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return held.positions[i]; });
  HeadRows rows;
  for (const size_t i : order) {
    rows.positions.push_back(held.positions[i]);
    rows.log_weights.push_back(held.log_weights[i]);
  }
  rows.roles.resize(order.size(), Role::kBoth);
  return rows;
}

Ledger CacheLayers::ledger(const CacheShape& shape) const {
  Ledger ledger;
  const auto channels = 2 * static_cast<uint64_t>(shape.head_dim);
  for (const auto& layer : layers_) {
    for (const HeadRun& run : layer->runs()) add_to(ledger, *run.stores);
    ledger.tokens = std::max<uint64_t>(ledger.tokens, layer->tokens());
    ledger.rows_seen += layer->tokens() * static_cast<uint64_t>(shape.kv_heads);
  }
  ledger.channels_seen = ledger.rows_seen * channels;
  ledger.channels_kept = ledger.rows_kept * channels;
  return ledger;
}

}  // namespace pith::cuda
