// The memory that a DeviceCache asks for before tokens come.

#include <algorithm>

#include "cache/cuda/device_cache.h"

namespace pith::cuda {

/// A prompt that is read exactly comes to a layer as one chunk.
ComingTokens DeviceCache::together(const ComingTokens& coming) const {
  const bool whole = coming.prompt && prompt() != PromptReading::kChunks;
  return {coming.tokens, whole ? coming.tokens : coming.at_once};
}

size_t DeviceCache::room(const ComingTokens& coming) const {
  StoreRoom all;
  for (const auto& layer : parts_.layers.all()) all += layer->room(together(coming));
  return memory_.total() + all.more + all.passing;
}

SpaceAsked DeviceCache::space_asked(const ComingTokens& coming, size_t caches) const {
  SpaceAsked asked;
  size_t runs = 0;
  for (const auto& layer : parts_.layers.all()) runs += layer->runs().size();
  for (const auto& layer : parts_.layers.all())
    asked.join(layer->space_asked(together(coming), parts_.space, caches * runs));
  if (parts_.probe) asked.pieces = std::max(asked.pieces, parts_.space.piece_bytes());
  asked.layers = parts_.space.layers_together();
  return asked;
}

}  // namespace pith::cuda
