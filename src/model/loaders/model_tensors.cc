#include "model/loaders/model_tensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pith/error.h"

namespace pith {
namespace {

std::optional<WeightType> weight_type_of(TensorType type) {
  switch (type) {
    case TensorType::kF32: return WeightType::kF32;
    case TensorType::kF16: return WeightType::kF16;
    case TensorType::kBF16: return WeightType::kBF16;
    default: return std::nullopt;
  }
}

[[noreturn]] void refuse_type(const ModelTensor& t, const std::string& supported) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: tensor '{}' has type {}; this use supports {}", t.file, t.name,
                          t.type_name, supported));
}

}  // namespace

std::string ModelTensor::shape_text() const { return fmt::format("[{}]", fmt::join(shape, ", ")); }

WeightType ModelTensor::weights() const {
  if (type) return *type;
  std::vector<std::string> names;
  for (WeightType known : weight_types()) names.emplace_back(to_string(known));
  refuse_type(*this, fmt::format("{}", fmt::join(names, " ")));
}

DType ModelTensor::dense() const {
  const std::optional<DType> found = type ? dense_type(*type) : std::nullopt;
  if (!found) refuse_type(*this, "F32, F16 and BF16");
  return *found;
}

ModelTensors::ModelTensors(SafeTensors file) : source_(file.source()) {
  for (const auto& [name, t] : file.tensors()) {
    tensors_.emplace(name, ModelTensor{name, weight_type_of(t.type), to_string(t.type), t.shape,
                                       t.data, t.bytes, t.file});
  }
  files_ = std::make_shared<const SafeTensors>(std::move(file));
}

const ModelTensor* ModelTensors::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

const ModelTensor& ModelTensors::at(std::string_view name) const {
  if (const ModelTensor* found = find(name)) return *found;
  const std::string in_file = namer_ ? namer_(std::string(name)) : "";
  throw Error(ErrorCode::kNotFound,
              fmt::format("{}: there is no tensor '{}' among its {}", source_,
                          in_file.empty() ? name : std::string_view(in_file), tensors_.size()));
}

}  // namespace pith
