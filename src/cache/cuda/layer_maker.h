#pragma once
// Makes the layers of a cache on the GPU: heads side by side under one rule become stores, and
// codecs of one name and one set of tables become one.

#include <memory>
#include <vector>

#include "cache/cuda/cache_layers.h"
#include "cache/cuda/device_common.h"

namespace pith::cuda {

/// The RoPE of each layer; those that differ are on the device once.
class RopeTables {
 public:
  RopeTables(const LayerRopes& ropes, DeviceCommon& common, cudaStream_t stream);

  const std::vector<std::shared_ptr<const RopeTable>>& distinct() const { return tables_; }
  /// Which of them a layer has.
  size_t index(int layer) const { return ropes_.index(layer); }
  /// Null: not known.
  const RopeTable* of(int layer) const {
    return tables_.empty() ? nullptr : tables_[index(layer)].get();
  }

 private:
  LayerRopes ropes_;
  std::vector<std::shared_ptr<const RopeTable>> tables_;
};

/// The arguments of layers without a RoPE.
LayerSite site_of(MemoryCounter& memory, const CacheShape& shape, cudaStream_t stream);

class LayerMaker {
 public:
  /// Plans layers first .. end - 1, which takes no memory. Throws kUnsupported, naming what of the
  /// policy the GPU does not do.
  LayerMaker(const ResolvedPolicy& policy, const CacheShape& shape, int first, int end);

  /// Of queries and exact rows.
  DType dtype() const { return plans_.front().front().plan.dtype; }

  struct Site {
    MemoryCounter& memory;
    cudaStream_t stream;
    uint64_t seed;
    const RopeTables& ropes;
    DeviceCommon& common;
  };
  CacheLayers make(const Site& site);

 private:
  /// Heads side by side under one rule, and what the policy makes of them.
  struct Part {
    HeadRange heads;
    LayerPlan plan;
  };
  std::vector<Part> plan_heads(const ResolvedPolicy& policy, int layer) const;
  std::unique_ptr<LayerRows> make_layer(const Site& site, int layer, std::vector<Part>& parts);

  const CacheShape& shape_;
  int first_;
  std::vector<std::vector<Part>> plans_;  // [L]
};

}  // namespace pith::cuda
