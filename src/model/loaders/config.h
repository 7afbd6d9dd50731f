#pragma once
// config.json of a Hugging Face folder -> ModelConfig. Both spellings are read: rope_theta,
// rope_scaling and torch_dtype of transformers 4, rope_parameters and dtype of transformers 5.

#include <filesystem>
#include <optional>

#include "kernels/rope.h"
#include "model/loaders/architectures.h"
#include "pith/model.h"

namespace pith {

/// ModelConfig with what only the forward pass needs.
struct ConfigFile {
  ModelConfig model;
  const Architecture* architecture = nullptr;
  Activation activation = Activation::kSilu;
  RopeScaling rope;  ///< of model.rope_theta
  /// In its place where the context is at most rope.original_context (LongRoPE).
  std::optional<RopeScaling> short_rope;
  double sliding_theta = 0;   ///< unscaled RoPE of layers with a sliding window; 0: as the others'
  float rope_magnitude = 1;   ///< on the channels of q and k that RoPE turns (LongRoPE)
  float attention_scale = 0;  ///< of q.k; 0 = 1 / sqrt(D)
  float embedding_scale = 1;  ///< of what the residual stream starts with
  float logit_scale = 1;
  float logit_soft_cap = 0;  ///< of the model's logits; 0 = none
  bool output_bias = false;  ///< of the attention's output projection
  bool mlp_bias = false;
  bool ties_unsaid = false;  ///< tie_word_embeddings is absent: the weights decide
};

/// The multipliers of Granite-like models.
struct Multipliers {
  double embedding = 1, residual = 1, attention = 0, logits = 1;
};
/// Brings them into the config. Blocks' additions to the residual stream are not multiplied: the
/// stream is kept in units of `residual` instead, which every norm undoes but for its eps.
void fold_multipliers(const Multipliers& m, ConfigFile& config);

/// Reads config.json and generation_config.json (for its ends of text), if there. Throws kNotFound,
/// kCorrupt (malformed, or a field that is missing or absurd, named) or kUnsupported (an
/// architecture or a variant that is not supported, named, with the list of those that are).
ConfigFile read_config(const std::filesystem::path& folder);

}  // namespace pith
