#pragma once
// The cache of one sequence on the GPU. How many rows lie where depends on counts alone, so the
// host plans every step by itself; what a decode step's kernels read is uploaded once a step, and
// nothing waits for the device.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache/cuda/chunk_steps.h"
#include "cache/cuda/layer_maker.h"
#include "cache/cuda/token_steps.h"

namespace pith::cuda {

class DeviceCache {
 public:
  /// `memory` must outlive the cache, its parent the clones. Without ropes policies that need them
  /// are refused. `common` is that of all caches of the engine; null: of this one and its clones.
  /// With `only` layer alone; the others must not be asked for. Throws kUnsupported, naming what of
  /// the policy the GPU does not do.
  DeviceCache(MemoryCounter& memory, const CacheShape& shape, const Policy& policy, uint64_t seed,
              cudaStream_t stream, const LayerRopes& ropes = {},
              std::shared_ptr<DeviceCommon> common = nullptr, std::optional<int> only = {});
  std::unique_ptr<DeviceCache> clone() const;

  /// Of queries and exact rows.
  DType dtype() const { return parts_.dtype; }
  /// Equal for caches of one policy.
  size_t kind() const { return kind_; }
  /// The RoPEs that differ, on the device, and which of them a layer has.
  const std::vector<std::shared_ptr<const RopeTable>>& ropes() const { return ropes_.distinct(); }
  size_t rope_of(int layer) const { return ropes_.index(layer); }

  /// The most memory of its own that it has while tokens come; and the scratch memory that these
  /// ask for, in a pass of `caches` of the engine at most.
  size_t room(const ComingTokens& coming) const;
  SpaceAsked space_asked(const ComingTokens& coming, size_t caches) const;
  const ChunkSpace& space() const { return parts_.space; }
  /// How the policy reads prompts.
  PromptReading prompt() const { return parts_.policy->prompt(); }

  TokenSteps& steps() { return steps_; }
  const TokenSteps& steps() const { return steps_; }
  ChunkSteps& chunks() { return chunks_; }

  /// As KvCache::protect. Captured token steps are no longer valid. Throws
  /// kInvalidArgument or kUnsupported; then nothing has changed.
  void protect(std::span<const TokenRange> ranges);
  const std::vector<TokenRange>& protected_tokens() const {
    return parts_.notes.protected_rows.ranges();
  }

  /// As KvCache's. `threads` of the host compare; 0 = all.
  void start_error_probe(const ErrorProbeOptions& options, uint64_t seed, int threads);
  std::vector<AttentionError> attention_errors() const {
    return parts_.probe ? parts_.probe->errors() : std::vector<AttentionError>();
  }

  /// As KvCache's.
  void archive(Archive& a);
  void archive_layer(int layer, Archive& a);

  size_t tokens() const { return parts_.layers.tokens(); }
  HeadRows rows(int layer, int head) const { return parts_.layers.rows(parts_.shape, layer, head); }
  /// Into k and v, f32 [rows, D] of the host: those of rows(), decoded; keys after RoPE. Waits.
  void read_rows(int layer, int head, float* k, float* v);
  Ledger ledger() const { return parts_.layers.ledger(parts_.shape); }
  std::string describe() const { return parts_.policy->describe(parts_.notes.protected_rows); }

 private:
  CacheParts make_parts(const CacheShape& shape, const Policy& policy, uint64_t seed,
                        cudaStream_t stream, std::optional<int> only) const;
  DeviceCache(const DeviceCache& other);
  /// The layer has a sliding window of its own: it forgets what is protected, as the model does.
  bool slides(int layer) const {
    const std::vector<int64_t>& windows = parts_.shape.sliding_window;
    return !windows.empty() && windows[static_cast<size_t>(layer)] > 0;
  }
  ComingTokens together(const ComingTokens& coming) const;

  MemoryCounter& memory_;
  std::shared_ptr<DeviceCommon> common_;
  RopeTables ropes_;
  CacheParts parts_;
  size_t kind_ = 0;
  uint64_t loaded_ = 0;  // tokens of the state that is being loaded
  TokenSteps steps_;
  ChunkSteps chunks_;
};

}  // namespace pith::cuda
