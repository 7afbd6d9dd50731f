#include "cache/cuda/cache_layers.h"

#include <fmt/format.h>

#include <algorithm>

#include "cache/cuda/head_state.h"
#include "cache/cuda/read_rows.h"
#include "pith/error.h"

namespace pith::cuda {

size_t CacheLayers::tokens() const {
  size_t most = 0;
  for (const auto& layer : layers_) most = std::max(most, layer->tokens());
  return most;
}

void CacheLayers::check_head(const CacheShape& shape, int layer, int head) const {
  if (layer < first_ || layer >= end() || head < 0 || head >= shape.kv_heads) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("layer {}, KV head {} of a cache with {} layers and {} KV heads", layer,
                            head, shape.layers, shape.kv_heads));
  }
}

HeadRows CacheLayers::rows(const CacheShape& shape, int layer, int head) const {
  check_head(shape, layer, head);
  return ordered_rows(at(layer), static_cast<size_t>(head)).rows;
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
