#pragma once
// config.json of a Hugging Face folder -> ModelConfig. Both spellings are read: rope_theta,
// rope_scaling and torch_dtype of transformers 4, rope_parameters and dtype of transformers 5.

#include <filesystem>

#include "kernels/rope.h"
#include "pith/model.h"

namespace pith {

/// ModelConfig with what only the forward pass needs.
struct ConfigFile {
  ModelConfig model;
  RopeScaling rope;
  bool output_bias = false;  ///< of the attention's output projection
  bool mlp_bias = false;
  bool ties_unsaid = false;  ///< tie_word_embeddings is absent: the weights decide
};

/// Reads config.json and generation_config.json (for its ends of text), if there. Throws kNotFound,
/// kCorrupt (malformed, or a field that is missing or absurd, named) or kUnsupported (an
/// architecture or a variant that is not supported, named, with the list of those that are).
ConfigFile read_config(const std::filesystem::path& folder);

}  // namespace pith
