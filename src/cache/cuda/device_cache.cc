#include "cache/cuda/device_cache.h"

#include <fmt/format.h>

#include <functional>

#include "cache/cuda/head_state.h"
#include "cache/cuda/read_rows.h"
#include "pith/error.h"

namespace pith::cuda {

DeviceCache::DeviceCache(MemoryCounter& memory, const CacheShape& shape, const Policy& policy,
                         uint64_t seed, cudaStream_t stream, const LayerRopes& ropes,
                         std::shared_ptr<DeviceCommon> common, std::optional<int> only)
    : memory_(memory),
      common_(common ? std::move(common) : std::make_shared<DeviceCommon>(memory.root())),
      ropes_(ropes, *common_, stream),
      parts_(make_parts(shape, policy, seed, stream, only)),
      kind_(std::hash<std::string>{}(parts_.policy->describe({}))),
      steps_(parts_, memory_),
      chunks_(parts_) {}

CacheParts DeviceCache::make_parts(const CacheShape& shape, const Policy& policy, uint64_t seed,
                                   cudaStream_t stream, std::optional<int> only) const {
  const int first = only.value_or(0), end = only ? *only + 1 : shape.layers;
  auto resolved = std::make_shared<const ResolvedPolicy>(policy, shape, seed, Device::kCuda);
  LayerMaker layers(*resolved, shape, first, end);
  return {shape,
          stream,
          resolved,
          layers.dtype(),
          common_->space(site_of(memory_, shape, stream)),
          SinkLogits(common_->memory(), shape, first, end, stream),
          layers.make({memory_, stream, seed, ropes_, *common_})};
}

DeviceCache::DeviceCache(const DeviceCache& o)
    : memory_(o.memory_.of_copies()),
      common_(o.common_),
      ropes_(o.ropes_),
      parts_(o.parts_.copy()),
      kind_(o.kind_),
      steps_(parts_, memory_),
      chunks_(parts_) {}

std::unique_ptr<DeviceCache> DeviceCache::clone() const {
  return std::unique_ptr<DeviceCache>(new DeviceCache(*this));
}

void DeviceCache::protect(std::span<const TokenRange> ranges) {
  if (ranges.empty()) return;
  parts_.policy->check_protect();
  ProtectedRows all = parts_.notes.protected_rows;
  all.add(ranges, static_cast<int64_t>(tokens()), static_cast<int64_t>(parts_.shape.context));
  parts_.notes.protected_rows = std::move(all);
  const CacheLayers& layers = parts_.layers;
  for (int l = layers.first(); l < layers.end(); ++l) {
    if (!slides(l)) layers.at(l).protect(parts_.notes.protected_rows);
  }
  check(cudaStreamSynchronize(parts_.stream), "protecting tokens");  // steps read the new stores
  steps_.renew();
}

void DeviceCache::read_rows(int layer, int head, float* k, float* v) {
  parts_.layers.check_head(parts_.shape, layer, head);
  cuda::read_rows(parts_.layers.at(layer), static_cast<size_t>(head), parts_.space, k, v);
}

void DeviceCache::archive(Archive& a) {
  uint64_t tokens = this->tokens();
  parts_.notes.archive(a, tokens, parts_.shape.context,
                       [&](std::span<const TokenRange> ranges) { protect(ranges); });
  loaded_ = tokens;
}

void DeviceCache::archive_layer(int layer, Archive& a) {
  parts_.token_begun = false;
  a.at(fmt::format("layer {}", layer));
  for (const HeadRun& run : parts_.layers.at(layer).runs())
    cuda::archive(a, *run.stores, {loaded_, parts_.notes.prompt_ends});
  if (parts_.probe) parts_.probe->archive(layer, a, loaded_);
}

void DeviceCache::start_error_probe(const ErrorProbeOptions& options, uint64_t seed, int threads) {
  check_error_probe(options);
  if (parts_.shape.varies()) refuse_variant();
  const auto in_cache = [](HeadStores& stores) { return stores.layer.cache_positions; };
  if (parts_.layers.any_stores(in_cache)) refuse_cache_positions();
  parts_.token_begun = false;
  parts_.probe = std::make_unique<DeviceProbe>(
      DeviceProbeSite{&memory_, parts_.stream, parts_.shape, parts_.dtype, seed,
                      parts_.layers.first(), parts_.layers.end()},
      options, threads);
}

}  // namespace pith::cuda
