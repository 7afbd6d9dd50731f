#include "model/cuda/pass_places.h"

#include <algorithm>
#include <utility>

namespace pith::cuda {

PassPlaces::PassPlaces(const ModelConfig& config, size_t tokens, DeviceHeads& heads,
                       DeviceProducts& products, PassGraphs& graphs, MemoryCounter& memory,
                       cudaStream_t stream)
    : config_(config),
      heads_(heads),
      products_(products),
      graphs_(graphs),
      memory_(memory),
      stream_(stream),
      places_(memory, MemoryKind::kScratch, static_cast<size_t>(config.layers) * tokens, stream) {}

bool PassPlaces::seat(std::span<const TokenRun> runs) {
  if (std::ranges::equal(seated_, runs, {}, {}, &TokenRun::cache)) return false;
  seated_.clear();  // until all is written
  const size_t n = runs.size();
  first_.assign(1, 0);
  for (int l = 0; l < config_.layers; ++l) {
    size_t calls = 0;
    for (const TokenRun& r : runs) calls = std::max(calls, r.cache->steps().token_calls(l));
    first_.push_back(first_.back() + calls * n);
  }
  reserve(first_.back());
  for (int l = 0; l < config_.layers; ++l) {
    for (size_t i = 0; i < n; ++i) {
      const DeviceCache& cache = *runs[i].cache;
      const DecodePlace whole = place_of(cache, l, i);
      DecodePlace* place = places_.host() + first_[static_cast<size_t>(l)] + i;
      for (size_t call = 0; call < cache.steps().token_calls(l); ++call)
        place[call * n] = cache.steps().place_of_call(l, call, whole);
    }
  }
  for (const TokenRun& r : runs) seated_.push_back(r.cache);
  return true;
}

void PassPlaces::reserve(size_t count) {
  if (places_.size() >= count) return;
  MirroredArray<DecodePlace> places(memory_, MemoryKind::kScratch, count, stream_);
  graphs_.clear();
  places_ = std::move(places);
}

DecodePlace PassPlaces::place_of(const DeviceCache& cache, int layer, size_t i) const {
  auto* attended = reinterpret_cast<float*>(products_.input());  // [n, H, D]
  const auto width = static_cast<size_t>(config_.query_heads * config_.head_dim);
  return cache.steps().token_place(layer, attended + i * width,
                                   heads_.q() + i * width * DeviceHeads::kRowBytes);
}

}  // namespace pith::cuda
