#pragma once
// The forward pass on the GPU (the CPU's is model/forward.h), of all sequences of a stream. A chunk
// of one sequence's tokens goes through cuBLASLt and the prefill attention; one token of each of
// many through fused matrix-vector products, replayed as one graph (token_passes.h). Nothing waits
// for the device before logits are asked for.

#include <memory>
#include <span>
#include <string>

#include "cache/cuda/device_cache.h"
#include "model/cuda/device_heads.h"
#include "model/cuda/device_logits.h"
#include "model/cuda/device_products.h"
#include "model/cuda/device_weights.h"
#include "model/cuda/product_plan.h"
#include "model/cuda/token_passes.h"

namespace pith::cuda {

class DeviceForward {
 public:
  using Shape = ForwardShape;
  /// Buffers, counted as kScratch. Counter and stream must outlive it. With max_tokens above 1 each
  /// pass is multiplied by skinny_product.h, or, where that does not take the weights or so many
  /// tokens, as a chunk of that many rows, or, where not all weights have the type of products, as
  /// matvec.h says of tokens together: what a sequence gets does not depend on the others.
  DeviceForward(std::shared_ptr<const DeviceWeights> weights, MemoryCounter& memory,
                cudaStream_t stream, const Shape& shape);

  /// Runs tokens at positions first_position, ... of one sequence; their rows are appended. The
  /// state is that of the last.
  void run_chunk(DeviceCache& cache, std::span<const int32_t> tokens, int64_t first_position,
                 float* state);

  /// A block of a prompt that is read a layer at a time (DevicePrompt), in the caller's memory.
  struct PromptStep {
    int layer = 0;
    size_t tokens = 0;                     ///< of the block
    bool few = false;                      ///< of the prompt: see multiplies_few()
    float* hidden = nullptr;               ///< [tokens, hidden]
    float *cos = nullptr, *sin = nullptr;  ///< [tokens, D / 2] of the layer's RoPE
    void* q = nullptr;                     ///< [tokens, H, D] of the rows' type
    void* attended = nullptr;              ///< [tokens, H, D] of attended_type(few)
    RowTarget target = {};                 ///< of the block's first row
  };
  /// hidden, cos and sin of the block's tokens, whose first stands at `position`; those of the r-th
  /// RoPE are written r * `ropes_apart` numbers behind. `tokens`: up to max_chunk().
  void begin_block(const DeviceCache& cache, const PromptStep& step,
                   std::span<const int32_t> tokens, int64_t position, size_t ropes_apart);
  /// q, and rows to the target.
  void heads_of_block(const DeviceCache& cache, const PromptStep& step);
  /// The rest of the layer.
  void end_block(const PromptStep& step);
  size_t max_chunk() const { return plan_.max_chunk(); }
  const ModelConfig& config() const { return config_; }
  /// Whether a chunk of so many tokens is multiplied by the kernels of single ones.
  bool multiplies_few(size_t tokens) const { return plan_.few(tokens) || plan_.few(max_chunk()); }
  DType attended_type(bool few) const { return few ? DType::kF32 : plan_.products(); }

  /// To be called before TokenSteps::begin_token: what caches wrote for the pass before is read.
  void wait_for_uploads() { heads_.uploaded().wait(); }
  /// Makes its buffers large enough for a pass of `tokens` sequences, of a layer's `calls` each at
  /// most. Throws kOutOfMemory.
  void prepare(size_t tokens, size_t calls) { passes_.prepare(tokens, calls); }
  /// Runs a token of each of up to max_tokens() sequences, whose caches have begun theirs and have
  /// rows of one type; their logits are made too. The caller ends the caches' tokens.
  void run_tokens(std::span<const TokenRun> runs);
  size_t max_tokens() const { return plan_.max_tokens(); }
  /// The parts of the forward pass that a token's bits depend on.
  std::string bits() const { return plan_.bits(); }
  /// Graphs captured of the cache are no longer valid: its step memory changes, or it goes.
  void forget(const DeviceCache& cache) { passes_.forget(cache); }

  /// Logits after states [hidden] on the device, of up to max_tokens() of them.
  void make_logits_after(std::span<float* const> states);
  /// Of what run_tokens or make_logits_after left, and of run_chunk()'s positions.
  DeviceLogits& logits() { return logits_; }
  /// Those of positions that left `hidden` [tokens, hidden], a block of a prompt's.
  void logits_of_block(const float* hidden, size_t tokens, const DeviceLogits::Sink& sink);

 private:
  void attention_of_chunk(DeviceCache& cache, int layer, const ProductRows& n);

  const std::shared_ptr<const DeviceWeights> weights_;
  const ModelConfig& config_;
  cudaStream_t stream_;
  const ProductPlan plan_;
  DeviceProducts products_;
  DeviceHeads heads_;
  TokenPasses passes_;
  DeviceLogits logits_;
};

}  // namespace pith::cuda
