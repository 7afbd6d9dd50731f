#include "tools/weight_types.h"

#include "model/loaders/weights.h"

namespace pith {

std::map<std::string, size_t> bytes_by_type(const Model& model) {
  std::map<std::string, size_t> bytes;
  for (const auto& [name, tensor] : model.weights().tensors.tensors())
    bytes[tensor.type_name] += tensor.bytes;
  return bytes;
}

}  // namespace pith
