#pragma once
// The sink logits of a cache's layers, on the device: see CacheShape::sinks.

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cuda/device.h"
#include "policy/resolved.h"

namespace pith::cuda {

/// Copies share them.
class SinkLogits {
 public:
  /// Of layers first .. end - 1.
  SinkLogits(MemoryCounter& memory, const CacheShape& shape, int first, int end,
             cudaStream_t stream) {
    if (shape.sinks.empty()) return;
    for (int l = first; l < end; ++l) {
      const float* own = shape.sinks_of(l);
      if (!own) continue;
      const auto heads = static_cast<size_t>(shape.query_heads);
      auto there =
          std::make_shared<DeviceArray<float>>(memory, MemoryKind::kScratch, heads, stream);
      there->upload(own, heads, stream);
      layers_.resize(static_cast<size_t>(l) + 1);
      layers_.back() = std::move(there);
    }
    check(cudaStreamSynchronize(stream), "sink logits");
  }
  /// A layer's [H]; null: none.
  const float* of(int layer) const {
    const auto at = static_cast<size_t>(layer);
    return at < layers_.size() && layers_[at] ? layers_[at]->data() : nullptr;
  }

 private:
  std::vector<std::shared_ptr<const DeviceArray<float>>> layers_;  // [L] or fewer
};

}  // namespace pith::cuda
