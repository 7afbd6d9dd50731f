#pragma once
// The forward pass of the Llama family over a chunk of tokens of one sequence, or over one token
// each of many: embedding, then per layer RMSNorm, q/k/v, bias, QK norm, RoPE, the cache's step,
// output projection and a gated MLP; logits are the LogitHead's. The differences between members
// are data (model/loaders/architectures.h). Source: Touvron et al. 2023; transformers' modelling
// code defines the details. Cost per token: 2 flops a weight, and each weight read once per pass.

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "model/logit_head.h"
#include "model/pass_rows.h"

namespace pith {

/// The input of a layer's cache: queries, keys and values after bias, norm and RoPE.
struct LayerStep {
  int layer = 0;
  const float* q = nullptr;  // [T, H, D]
  const float* k = nullptr;  // [T, G, D]
  const float* v = nullptr;  // [T, G, D]
  size_t tokens = 0;         // T
};

/// One layer over a block of a prompt's tokens.
struct LayerBlock {
  int layer = 0;
  std::span<const int32_t> tokens;  // [T]
  int64_t first_position = 0;
  const LayerRopes* ropes = nullptr;
  float* hidden = nullptr;  // [T, hidden] the residual stream; made from tokens by the first layer
  float* k = nullptr;       // [T, G, D] gets keys after RoPE
  float* v = nullptr;       // [T, G, D] gets values
  /// out [T, H, D] <- what queries q [T, H, D] find, once k and v are there.
  std::function<void(float* out, const float* q)> attend;
};

class [[gnu::visibility("hidden")]] Forward;  // as the weights that it holds
class Forward {
 public:
  /// Buffers for passes of up to `max_chunk` tokens, counted as kScratch. Context and model must
  /// outlive it.
  Forward(const Context& context, const Model& model, size_t max_chunk,
          MatmulPrecision precision = MatmulPrecision::kFast);

  /// Runs tokens at positions first_position, first_position + 1, ... through all layers; their
  /// rows are appended to the cache. Throws kInvalidArgument (no tokens, too many, an unknown id).
  void run(KvCache& cache, std::span<const int32_t> tokens, int64_t first_position);
  /// Runs one token of each of many sequences; or any number of one. A row's result does not depend
  /// on those beside it. Throws as above; what a cache throws is its sequence's failure.
  void run(std::span<Sequence> sequences);
  /// Runs one layer. run_layer of all layers in turn is run() of the block, to the bit.
  void run_layer(const LayerBlock& block);
  /// Where rows of the last run() left off, [T, hidden], and row `t` alone: what logits are made
  /// from.
  std::span<const float> states() const { return {hidden_.data(), rows_.count() * hidden()}; }
  std::span<const float> last_state(size_t t) const {
    return states().subspan(t * hidden(), hidden());
  }
  LogitHead& logits() { return logits_; }
  /// Makes buffers large enough for a pass of `tokens` tokens of `sequences` sequences, each with
  /// at most so many ropes. Throws kOutOfMemory.
  void prepare(size_t tokens, size_t sequences, size_t ropes);

  /// Called before each step of the cache, layer by layer; what it throws ends run(). Empty: no
  /// calls.
  using Observer = std::function<void(const LayerStep&)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  size_t max_chunk() const { return rows_.most(); }

 private:
  /// Where the tokens of a pass have their residual stream, keys and values.
  struct Place {
    float *hidden, *k, *v;
  };
  void embed();
  /// q_, keys and values; `pending`: the layer before left an update.
  void project(int layer, bool pending);
  void project_back(int layer);
  /// Adds the layer's last update to the residual stream.
  void finish_layer(int layer);
  size_t hidden() const { return static_cast<size_t>(config_.hidden); }
  float* hidden_row(size_t t) { return at_.hidden + t * hidden(); }
  /// out <- a token's residual stream as a block with this norm reads it.
  void read(float* out, const std::vector<float>& norm, size_t t) {
    normalise(out, norm, hidden_row(t), context_.kernels, config_);
  }
  void prepare_heads(float* heads, size_t count, const std::vector<float>& bias,
                     const std::vector<float>& norm, const PassRows::Angles& angles) const;
  void mlp(int layer);
  void add_update(size_t token, const Linear& last, const std::vector<float>& post_norm);
  RowsOf rows_of() const { return rows_.many() ? RowsOf::kMany : RowsOf::kOnePrompt; }

  Context context_;
  const Model::Weights& weights_;
  const ModelConfig& config_;
  Matmul matmul_;
  LogitHead logits_;
  PassRows rows_;
  Place at_{};
  size_t prepared_ = 0;  // tokens of the last prepare() for one sequence
  size_t prepared_many_ = 0;
  Observer observer_;

  Array<float> hidden_;     // [T, hidden] the residual stream
  Array<float> update_;     // [T, hidden] what a block adds to it
  Array<float> q_;          // [T, H, D]
  Array<float> k_, v_;      // [T, G, D]
  Array<float> attended_;   // [T, H, D]
  Array<float> gate_, up_;  // [T, intermediate]
};

}  // namespace pith
