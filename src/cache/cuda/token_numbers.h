#pragma once
// The numbers of a cache that a token's kernels read: spans, notes and targets of all its layers.
// The host writes them, and they come to the device together.

#include <vector>

#include "cache/cuda/cache_layers.h"
#include "kernels/cuda/pinned.h"

namespace pith::cuda {

class TokenNumbers {
 public:
  /// Room for those of `layers`; `memory` must outlive it.
  void make(const CacheLayers& layers, const CacheShape& shape, MemoryCounter& memory,
            cudaStream_t stream);

  /// All numbers of a step follow.
  void begin() { spans_.begin(); }
  // Of layer i of CacheLayers::all():
  TokenSlots on_host(size_t i);
  /// As they come to the device.
  std::vector<DeviceSpan> spans(size_t i) const {
    return spans_.read(first_[i].spans, first_[i + 1].spans - first_[i].spans);
  }
  const DeviceSpan* device_spans(size_t i) const { return spans_.device() + first_[i].spans; }
  const TokenNote* device_notes(size_t i) const { return notes_.device() + first_[i].notes; }
  const RowTarget* device_targets(size_t i) const { return targets_.device() + first_[i].targets; }

  std::vector<Upload> uploads() const;
  /// Blocks of a decode call over the spans of any layer, of `query_blocks` for each tile.
  int blocks(int query_blocks) const;

 private:
  /// Where a layer's begin.
  struct First {
    size_t spans = 0, notes = 0, targets = 0;
  };
  std::vector<First> first_;          // [L + 1]
  StepSpans spans_;                   // [L, spans of the layer]
  MirroredArray<TokenNote> notes_;    // [L, notes of the layer]
  bool reads_notes_ = false;          // kernels do, somewhere
  MirroredArray<RowTarget> targets_;  // [L, G] of layers with several rules
};

}  // namespace pith::cuda
