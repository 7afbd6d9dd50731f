// The memory that a DeviceCache asks for before tokens come.

#include <algorithm>

#include "cache/cuda/device_cache.h"

namespace pith::cuda {

/// A prompt that is read exactly comes to a layer as one chunk.
ComingTokens DeviceCache::together(const ComingTokens& coming) const {
  const bool whole = coming.prompt && policy_->prompt() != PromptReading::kChunks;
  return {coming.tokens, whole ? coming.tokens : coming.at_once};
}

size_t DeviceCache::room(const ComingTokens& coming) const {
  StoreRoom all;
  for (const auto& layer : layers_) all += layer->room(together(coming));
  return memory_.total() + all.more + all.passing;
}

SpaceAsked DeviceCache::space_asked(const ComingTokens& coming, size_t caches) const {
  SpaceAsked asked;
  size_t runs = 0;
  for (const auto& layer : layers_) runs += layer->runs().size();
  for (const auto& layer : layers_)
    asked.join(layer->space_asked(together(coming), space_, caches * runs));
  if (probe_) asked.pieces = std::max(asked.pieces, space_.piece_bytes());
  asked.layers = space_.layers_together();
  return asked;
}

}  // namespace pith::cuda
