#pragma once
// A language model read from a Hugging Face folder (config.json, *.safetensors, tokenizer).

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

/// Shapes and constants, from config.json.
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
  /// Per layer: a query sees this many newest positions, 0 = all.
  std::vector<int64_t> sliding_window = {};  // [L]
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool qk_norm = false;
  DType weights = DType::kF32;
  int32_t bos = -1;
  std::vector<int32_t> eos = {};
  /// Of the weights that make keys and values, set by Model::load; 0: no weights were read. What
  /// was fitted to one model (dictionaries) is refused for another.
  uint64_t fingerprint = 0;

  /// Bytes of one row (key and value) of an uncompressed cache over all layers and KV heads.
  size_t bytes_per_token(DType dtype) const {
    return size_t{2} * static_cast<size_t>(layers * kv_heads * head_dim) * size_of(dtype);
  }
};

/// The shape and constants of a folder or a GGUF file, without its weights: what estimate_ledger
/// and presets ask for. Its fingerprint is 0. Throws kNotFound, kCorrupt or kUnsupported as
/// Model::load does.
ModelConfig read_model_config(const std::filesystem::path& model);

/// Called now and then during long work: done of total units. Return false to cancel.
using Progress = std::function<bool(size_t done, size_t total)>;

/// Immutable after loading; sessions share it.
class Model {
 public:
  /// Loads and checks a folder. Weights stay memory-mapped. Throws kNotFound, kCorrupt,
  /// kUnsupported (architectures are refused by name) or kNonFinite (NaN or infinite weights; the
  /// check reads every weight once and can be turned off).
  static std::shared_ptr<const Model> load(const std::filesystem::path& folder,
                                           bool check_finite = true, const Progress& = {});
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const ModelConfig& config() const;
  /// Throws kNotFound if the folder has no tokenizer.
  const Tokenizer& tokenizer() const;
  size_t weight_bytes() const;
  /// The architectures that load.
  static std::span<const std::string_view> supported_architectures();

  struct [[gnu::visibility("hidden")]] Weights;
  const Weights& weights() const { return *weights_; }

 private:
  Model();
  std::unique_ptr<Weights> weights_;
};

}  // namespace pith

#pragma GCC visibility pop
