#include <fmt/format.h>
#include <malloc.h>

#include "core/input_file.h"
#include "model/loaders/gguf_model.h"
#include "model/loaders/weights.h"
#include "pith/error.h"
#include "pith/tokenizer.h"

namespace pith {

Model::Model() = default;
Model::~Model() = default;

std::shared_ptr<const Model> Model::load(const std::filesystem::path& folder, bool check_finite,
                                         const Progress& progress) {
  std::shared_ptr<Model> model(new Model);
  model->weights_ = load_weights(folder);
  Weights& w = *model->weights_;
  const bool has_tokenizer = holds_tokenizer(folder) || is_there(folder / "tokenizer.json") ||
                             is_there(folder / "tokenizer.model");
  if (has_tokenizer) w.tokenizer = load_tokenizer(folder);
#if defined(__GLIBC__)
  ::malloc_trim(0);  // a vocabulary's lists were needed for a moment, and lie between what stays
#endif
  w.config.model.fingerprint = fingerprint(w.layers);
  if (check_finite) check_finite_weights(w.tensors, progress);
  return model;
}

ModelConfig read_model_config(const std::filesystem::path& model) {
  return (is_gguf_path(model) ? read_gguf_config(Gguf::open(model)) : read_config(model)).model;
}

const ModelConfig& Model::config() const { return weights_->config.model; }
size_t Model::weight_bytes() const { return weights_->bytes; }

const Tokenizer& Model::tokenizer() const {
  if (weights_->tokenizer) return *weights_->tokenizer;
  const std::filesystem::path& folder = weights_->folder;
  const char* lacks = "neither tokenizer.json nor tokenizer.model";
  if (is_gguf_path(folder))
    lacks = "no tokenizer: its key tokenizer.ggml.model is missing";
  else if (is_there(folder / "vocab.json"))
    lacks = "vocab.json and no tokenizer.json, which save_pretrained() of transformers makes of it";
  throw Error(ErrorCode::kNotFound,
              fmt::format("{} has {}; token ids work, text does not", folder.string(), lacks));
}

}  // namespace pith
