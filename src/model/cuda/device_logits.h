#pragma once
// The part of the logits that the host asks for.

#include <functional>
#include <optional>
#include <span>

#include "kernels/cuda/pinned.h"
#include "kernels/cuda/ranking.h"
#include "model/cuda/device_products.h"

namespace pith::cuda {

class DeviceLogits {
 public:
  /// All must outlive it.
  DeviceLogits(const ModelConfig& config, const ProductPlan& plan, DeviceProducts& products,
               MemoryCounter& memory, cudaStream_t stream);

  /// Row `i` [V] of those that were made last; valid until the next call of anything of the forward
  /// pass. Waits for the device. Throws kNonFinite.
  std::span<const float> row(size_t i);
  /// The largest of that row, found on the device; `call` says how many, its logits are set here.
  std::span<const RankedLogit> best(size_t i, RankingCall call);
  /// Finds the largest of each of the first `rows` rows, in one launch; largest() returns one of
  /// them, as best() would.
  void find_largest(size_t rows);
  std::span<const RankedLogit> largest(size_t i) const;

  /// Hands out the logits [count, V] of a chunk's positions, a block at a time. Throws kNonFinite.
  using Sink = std::function<void(size_t first, size_t count, const float* logits)>;
  void of_chunk(const Sink& sink);
  /// The residual stream has so many tokens of a chunk; 0: it has others.
  void set_chunk(size_t tokens) { tokens_ = tokens; }

 private:
  LogitRanking& ranking();
  const float* fetch(size_t first, size_t count);

  const ModelConfig& config_;
  const ProductPlan& plan_;
  DeviceProducts& products_;
  MemoryCounter& memory_;
  cudaStream_t stream_;
  size_t tokens_ = 0;
  PinnedArray<float> host_;              // [block, V]
  std::optional<LogitRanking> ranking_;  // once it is asked for
  std::span<const LogitRanking::Largest> largest_;
};

}  // namespace pith::cuda
