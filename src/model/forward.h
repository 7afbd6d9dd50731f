#pragma once
// The forward pass of the Llama family over a chunk of tokens of one sequence, or over one token
// each of many: embedding, then per layer RMSNorm,
// q/k/v, bias, QK norm, RoPE, the cache's step, output projection and a gated MLP, then the final
// norm and logits. The differences between members are data (model/loaders/architectures.h).
// Source: Touvron et al. 2023; transformers' modelling code defines the details. Cost per token: 2
// flops a weight, and each weight read once per pass.

#include <exception>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "core/memory.h"
#include "kernels/matmul.h"
#include "model/loaders/weights.h"
#include "pith/model.h"

namespace pith {

/// The input of a layer's cache: queries, keys and values after bias, norm and RoPE.
struct LayerStep {
  int layer = 0;
  const float* q = nullptr;  // [T, H, D]
  const float* k = nullptr;  // [T, G, D]
  const float* v = nullptr;  // [T, G, D]
  size_t tokens = 0;         // T
};

/// The tokens of one sequence in a pass, at positions first_position, first_position + 1, ...
struct Sequence {
  KvCache* cache = nullptr;
  std::span<const int32_t> tokens;
  int64_t first_position = 0;
  std::exception_ptr failure = nullptr;  ///< what its cache threw; the others go on
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
  /// Where row `t` of the last run() left off, [hidden]: what logits are made from.
  std::span<const float> last_state(size_t t) const {
    const auto hidden = static_cast<size_t>(config_.hidden);
    return {hidden_.data() + t * hidden, hidden};
  }
  /// Logits [count, V] after `states`, each [hidden]; valid until the next call of anything here.
  /// At most most_states() of them. Whether they are finite is the caller's to ask, row by row.
  const float* logits_after(std::span<const float* const> states);
  size_t most_states() const;
  /// Makes buffers large enough for a pass of `tokens` tokens of `sequences` sequences, each with
  /// at most so many ropes. Throws kOutOfMemory.
  void prepare(size_t tokens, size_t sequences, size_t ropes);
  /// The same for logits after so many states.
  void prepare_logits(size_t states);
  /// Throws kNonFinite if any of logits [count, V] is not finite.
  void check_finite(const float* logits, size_t count) const;

  /// Logits [V] after the last token of run(); valid until the next call of anything here.
  /// Throws kNonFinite.
  std::span<const float> last_logits();
  /// Hands out the logits [count, V] of run()'s positions [0, tokens), a block at a time; `first`
  /// counts from 0 at the chunk's first token. Throws kNonFinite.
  using Sink = std::function<void(size_t first, size_t count, const float* logits)>;
  void all_logits(const Sink& sink);
  /// The same after given `states` [tokens, hidden].
  void all_logits(const float* states, size_t tokens, const Sink& sink);

  /// Called before each step of the cache, layer by layer; what it throws ends run(). Empty: no
  /// calls.
  using Observer = std::function<void(const LayerStep&)>;
  void set_observer(Observer observer) { observer_ = std::move(observer); }

  size_t max_chunk() const { return max_chunk_; }

 private:
  /// A token of the pass.
  struct Row {
    int32_t token = 0;
    int64_t position = 0;
    const LayerRopes* ropes = nullptr;
  };
  /// Where the tokens of a pass have their residual stream, keys and values.
  struct Rows {
    float *hidden, *k, *v;
  };
  void list_rows(std::span<const Sequence> sequences);
  void check_tokens(std::span<const int32_t> tokens) const;
  void check_count(size_t tokens) const;
  void make_angles(size_t ropes);
  void make_logits(size_t states);
  void embed();
  void find_angles();
  /// q_, keys and values; `pending`: the layer before left an update.
  void project(int layer, bool pending);
  void project_back(int layer);
  void step_caches(std::span<Sequence> sequences, int layer);
  /// Adds the layer's last update to the residual stream.
  void finish_layer(int layer);
  float* hidden_row(size_t t) { return at_.hidden + t * static_cast<size_t>(config_.hidden); }
  void normalise(float* out, const std::vector<float>& norm, const float* x) const;
  /// Angles [D/2] of a token, of the RoPE of a layer.
  struct Angles {
    const float *cos = nullptr, *sin = nullptr;
  };
  void prepare_heads(float* heads, size_t count, const std::vector<float>& bias,
                     const std::vector<float>& norm, const Angles& angles) const;
  void mlp(int layer);
  void add_update(size_t token, const Linear& last, const std::vector<float>& post_norm);
  RowsOf rows_of() const { return many_ ? RowsOf::kMany : RowsOf::kOnePrompt; }
  /// y [count, V] <- logits of rows that `row` makes.
  const float* logits(size_t count, RowSource row, RowsOf rows);

  Context context_;
  const Model::Weights& weights_;
  const ModelConfig& config_;
  size_t max_chunk_;
  Matmul matmul_;
  size_t tokens_ = 0;      // of the last run()
  std::vector<Row> rows_;  // [T]
  Rows at_{};
  bool many_ = false;    // the rows are of several sequences
  size_t prepared_ = 0;  // tokens of the last prepare() for one sequence
  size_t prepared_many_ = 0;
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
