#pragma once
// The tensors of a model by Hugging Face's names, whatever file they come from.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/gguf.h"
#include "core/safetensors.h"
#include "core/weight_type.h"

namespace pith {

/// One tensor, read-only, row-major.
struct ModelTensor {
  std::string name;                ///< as the file has it, for messages
  std::optional<WeightType> type;  ///< none: a type that weights cannot have
  std::string type_name;
  std::vector<size_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  std::string file;  ///< for messages

  /// "[2, 3]"
  std::string shape_text() const;
  /// Throws kUnsupported, naming tensor, type and the types that are supported.
  WeightType weights() const;
  /// The same of vectors, which are dense.
  DType dense() const;
};

class ModelTensors {
 public:
  explicit ModelTensors(SafeTensors file);
  using Map = std::map<std::string, ModelTensor, std::less<>>;
  using Namer = std::function<std::string(const std::string& name)>;
  /// `files` own what the tensors point at. `namer` gives the file's own name of a tensor, or "".
  ModelTensors(std::string source, Map tensors, std::shared_ptr<const void> files, Namer namer = {})
      : source_(std::move(source)),
        tensors_(std::move(tensors)),
        files_(std::move(files)),
        namer_(std::move(namer)) {}

  /// By name, ascending.
  const Map& tensors() const { return tensors_; }
  const ModelTensor* find(std::string_view name) const;
  /// Throws kNotFound, naming the files searched.
  const ModelTensor& at(std::string_view name) const;
  const std::string& source() const { return source_; }
  /// Where the shapes are told that the tensors must have, for messages.
  const char* shapes_from() const { return namer_ ? "the file's keys" : "config.json"; }

 private:
  std::string source_;
  Map tensors_;
  std::shared_ptr<const void> files_;  // keep the mappings
  Namer namer_;                        // none: the files have Hugging Face's names
};

}  // namespace pith
