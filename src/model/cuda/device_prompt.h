#pragma once
// A prompt that is read exactly on the GPU, a layer at a time (the CPU's is model/prompt_pass.h):
// in each layer all tokens' queries and rows are made, block by block; then they attend together,
// as one chunk, and the layer's rows are compressed; then the blocks end the layer. Memory: the
// residual stream [T, hidden] f32, queries and their results [T, H, D], and one layer's exact rows.

#include <vector>

#include "model/cuda/device_forward.h"
#include "model/prompt_blocks.h"

namespace pith::cuda {

class DevicePrompt {
 public:
  /// The next tokens of `cache`; a prompt ends with them if `ends`. `forward`, whose stream it is,
  /// and `memory` must outlive it. Throws kOutOfMemory.
  DevicePrompt(DeviceForward& forward, MemoryCounter& memory, cudaStream_t stream,
               const DeviceCache& cache, std::span<const int32_t> tokens, bool ends);

  size_t units() const { return blocks_.size() * layers_; }
  size_t units_done() const { return done_; }
  /// Runs the next unit: the end of a layer for a block. The first of a layer makes its attention,
  /// too. The cache is that of the making, or its copy.
  void advance(DeviceCache& cache);
  /// Where the last token left off, once it is done: to `state` [hidden]. `sink` (may be empty)
  /// gets the logits of all tokens.
  void finish(float* state, const DeviceLogits::Sink& sink);

 private:
  DeviceForward::PromptStep step_of(const DeviceCache& cache, int layer,
                                    const PromptRange& block) const;
  void look_up(const DeviceCache& cache);
  void attend(DeviceCache& cache, int layer);

  DeviceForward& forward_;
  cudaStream_t stream_;
  std::vector<int32_t> tokens_;
  int64_t first_position_;
  bool ends_, few_;
  std::vector<PromptRange> blocks_;
  size_t layers_, hidden_width_, query_width_, half_;  // half: D / 2
  size_t done_ = 0;
  DeviceArray<float> hidden_;        // [T, hidden]
  DeviceArray<float> cos_, sin_;     // [ropes, T, D / 2]
  DeviceArray<std::byte> q_;         // [T, H, D] of 16 bits
  DeviceArray<std::byte> attended_;  // [T, H, D]
};

}  // namespace pith::cuda
