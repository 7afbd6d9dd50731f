#pragma once
// The parts of one cache on the GPU that a token's steps and a chunk's share.

#include <memory>

#include "cache/cuda/cache_layers.h"
#include "cache/cuda/device_probe.h"
#include "cache/cuda/sink_logits.h"
#include "cache/cuda/waiting_moves.h"
#include "cache/stream_notes.h"

namespace pith::cuda {

struct CacheParts {
  CacheShape shape;
  cudaStream_t stream = nullptr;
  std::shared_ptr<const ResolvedPolicy> policy;
  DType dtype = DType::kF16;  ///< of queries and exact rows
  ChunkSpace& space;          ///< of all caches of the engine
  SinkLogits sinks;
  CacheLayers layers;
  StreamNotes notes = {};
  Copied<DeviceProbe> probe = {};  ///< null: none was started
  /// The next token's numbers are written, and nothing else has come since.
  bool token_begun = false;
  WaitingMoves moves{space, stream};

  /// For a clone, between passes.
  CacheParts copy() const {
    return {shape, stream, policy, dtype, space, sinks, layers, notes, probe};
  }
};

}  // namespace pith::cuda
