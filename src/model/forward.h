#pragma once
// The forward pass of the Llama family over a chunk of tokens: embedding, then per layer RMSNorm,
// q/k/v, bias, QK norm, RoPE, the cache's step, output projection and a gated MLP, then the final
// norm and logits. What members differ in is data (model/architectures.h). Source: Touvron et al.
// 2023; transformers' modelling code defines the details. Cost per token: 2 flops a weight, and
// each weight read once per chunk.

#include <functional>
#include <span>
#include <utility>

#include "cache/kv_cache.h"
#include "core/memory.h"
#include "kernels/matmul.h"
#include "model/weights.h"
#include "pith/model.h"

namespace pith {

/// What a layer's cache is about to be given: queries, keys and values after bias, norm and RoPE.
struct LayerStep {
  int layer = 0;
  const float* q = nullptr;  // [T, H, D]
  const float* k = nullptr;  // [T, G, D]
  const float* v = nullptr;  // [T, G, D]
  size_t tokens = 0;         // T
};

class Forward {
 public:
  /// Buffers for chunks of up to `max_chunk` tokens, counted as kScratch. Context and model must
  /// outlive it.
  Forward(const Context& context, const Model& model, size_t max_chunk,
          MatmulPrecision precision = MatmulPrecision::kFast);

  /// Runs tokens at positions first_position, first_position + 1, ... through all layers; their
  /// rows are appended to the cache. Throws kInvalidArgument (no tokens, too many, an unknown id).
  void run(KvCache& cache, std::span<const int32_t> tokens, int64_t first_position);

  /// Logits [V] after the last token of run(); valid until the next call of anything here.
  /// Throws kNonFinite.
  std::span<const float> last_logits();
  /// Hands out the logits [count, V] of run()'s positions [0, tokens), a block at a time; `first`
  /// counts from 0 at the chunk's first token. Throws kNonFinite.
  using Sink = std::function<void(size_t first, size_t count, const float* logits)>;
  /// Logits from here on are those after `other`'s last token, until the next run(): a fork draws
  /// from where it was made. Both of one model.
  void continue_from(const Forward& other);
  void all_logits(const Sink& sink);

  /// Called before each step of the cache, layer by layer; what it throws ends run(). Empty: nobody
  /// watches.
  using Observer = std::function<void(const LayerStep&)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  size_t max_chunk() const { return max_chunk_; }

 private:
  void embed(std::span<const int32_t> tokens);
  void find_angles(const LayerRopes& ropes, int64_t first_position);
  void attention(KvCache& cache, int layer);
  void normalise(float* out, const std::vector<float>& norm, size_t token) const;
  /// Angles [D/2] of a token, of the RoPE of a layer.
  struct Angles {
    const float *cos = nullptr, *sin = nullptr;
  };
  void prepare_heads(float* heads, size_t count, const std::vector<float>& bias,
                     const std::vector<float>& norm, const Angles& angles) const;
  void mlp(int layer);
  void add_update(size_t token, const Linear& last, const std::vector<float>& post_norm);
  const float* logits(size_t first, size_t count);

  Context context_;
  const Model::Weights& weights_;
  const ModelConfig& config_;
  size_t max_chunk_;
  Matmul matmul_;
  size_t tokens_ = 0;  // of the last run()
  Observer observer_;

  Array<float> hidden_;     // [T, hidden] the residual stream
  Array<float> update_;     // [T, hidden] what a block adds to it
  Array<float> q_;          // [T, H, D]
  Array<float> k_, v_;      // [T, G, D]
  Array<float> attended_;   // [T, H, D]
  Array<float> gate_, up_;  // [T, intermediate]
  Array<float> cos_, sin_;  // [ropes, T, D/2]
  Array<float> logits_;     // [block, V]
};

}  // namespace pith
