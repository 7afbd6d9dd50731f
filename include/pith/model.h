#pragma once
// A language model: a Hugging Face folder (config.json, *.safetensors, tokenizer) or a GGUF file.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pith/dtype.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

class Tokenizer;  // pith/tokenizer.h

/// Shapes and constants of a model.
struct ModelConfig {
  std::string architecture = {};  ///< e.g. "LlamaForCausalLM"
  int layers = 0;                 // L
  int hidden = 0;                 // width of the residual stream
  int intermediate = 0;           // width of the MLP
  int query_heads = 0;            // H
  int kv_heads = 0;               // G
  int head_dim = 0;               // D
  int vocab = 0;                  // V
  int64_t context = 0;            ///< longest position trained for
  float norm_eps = 1e-5f;
  double rope_theta = 10000;
  /// Per layer: the number of newest positions that a query sees; 0 = all.
  std::vector<int64_t> sliding_window = {};  // [L]
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  float attention_soft_cap = 0;  ///< of attention's scores s: cap tanh(s / cap); 0 = none
  DType weights = DType::kF32;
  int32_t bos = -1;
  std::vector<int32_t> eos = {};
  /// Hash of the weights that make keys and values, set by Model::load; 0: no weights were read.
  /// Dictionaries that were fitted to one model are refused for another.
  uint64_t fingerprint = 0;

  /// Bytes of one row (key and value) of an uncompressed cache over all layers and KV heads.
  size_t bytes_per_token(DType dtype) const {
    return size_t{2} * static_cast<size_t>(layers * kv_heads * head_dim) * size_of(dtype);
  }
};

/// Reads the configuration of a folder or a GGUF file without its weights, for estimate_ledger and
/// presets. The fingerprint is 0.
/// Throws kNotFound, kCorrupt or kUnsupported as Model::load does.
ModelConfig read_model_config(const std::filesystem::path& model);

/// Called during long work with `done` of `total` units. Return false to cancel.
using Progress = std::function<bool(size_t done, size_t total)>;

/// Immutable after loading; engines share it.
class Model {
 public:
  /// Loads a folder or a GGUF file. Weights stay memory-mapped. `check_finite` reads every weight
  /// once and throws kNonFinite for NaN and infinity. Throws kNotFound, kCorrupt, or kUnsupported
  /// with the architecture's name.
  static std::shared_ptr<const Model> load(const std::filesystem::path& folder,
                                           bool check_finite = true, const Progress& = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const;
  /// Throws kNotFound if the model has no tokenizer.
  const Tokenizer& tokenizer() const;
  size_t weight_bytes() const;
  /// Names of the architectures that load() accepts.
  static std::span<const std::string_view> supported_architectures();

  struct [[gnu::visibility("hidden")]] Weights;
  const Weights& weights() const { return *weights_; }

 private:
  Model();
  std::unique_ptr<Weights> weights_;
};

}  // namespace pith

#pragma GCC visibility pop
