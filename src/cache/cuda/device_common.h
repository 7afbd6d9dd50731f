#pragma once
// Common to the caches of an engine on the device. It takes turns as they do.
//
// Tables depend on the model, a policy's codecs and the seed alone (trained dictionaries and the
// products of their atoms, projections, rotations, the angles of RoPE): a runtime has them once,
// however many caches of its engines and layers use them and as long as one does. Scratch memory is
// used by one cache's pass at a time.

#include <memory>
#include <utility>

#include "cache/cuda/chunk_space.h"
#include "core/made_once.h"

namespace pith::cuda {

/// The tables of a runtime. They count as its own; what they take while they code too.
struct DeviceTables {
  explicit DeviceTables(MemoryCounter& of_runtime) : memory(MemoryCounter::Root{}, of_runtime) {}
  MemoryCounter memory;
  MadeOnce<DeviceCodec> codecs;
  MadeOnce<RopeTable> ropes;
};

class DeviceCommon {
 public:
  /// Scratch memory counts here. `tables`: the runtime's; null: its own.
  explicit DeviceCommon(MemoryCounter& memory, std::shared_ptr<DeviceTables> tables = nullptr)
      : memory_(memory),
        tables_(tables ? std::move(tables) : std::make_shared<DeviceTables>(memory.root())) {}

  MemoryCounter& memory() { return memory_; }
  DeviceTables& tables() { return *tables_; }
  /// For caches of one shape, the first one's.
  ChunkSpace& space(LayerSite site) {
    site.memory = &memory_;
    if (!space_) space_ = std::make_unique<ChunkSpace>(site);
    return *space_;
  }
  /// Gives its memory back, between passes.
  void clear_space() {
    if (space_) space_->clear();
  }

 private:
  MemoryCounter& memory_;
  std::shared_ptr<DeviceTables> tables_;
  std::unique_ptr<ChunkSpace> space_;
};

}  // namespace pith::cuda
