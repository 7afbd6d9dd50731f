#include <fmt/format.h>

#include "model/weights.h"
#include "pith/error.h"

namespace pith {

Model::Model() = default;
Model::~Model() = default;

std::shared_ptr<const Model> Model::load(const std::filesystem::path& folder, bool check_finite,
                                         const Progress& progress) {
  std::shared_ptr<Model> model(new Model);
  model->weights_ = load_weights(folder);
  if (check_finite) check_finite_weights(model->weights_->file, progress);
  return model;
}

const ModelConfig& Model::config() const { return weights_->config.model; }
size_t Model::weight_bytes() const { return weights_->bytes; }

}  // namespace pith
