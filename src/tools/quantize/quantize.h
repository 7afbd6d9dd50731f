#pragma once
// A model written as a GGUF file with its matrices in blocks of codes.

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "core/weight_type.h"
#include "pith/model.h"

namespace pith {

struct QuantizeRequest {
  std::filesystem::path model;  ///< a folder in Hugging Face's layout, or a GGUF file
  std::filesystem::path output;
  WeightType type = WeightType::kQ8Zero;
  std::string chat_template;  ///< of a folder; a GGUF file keeps its own
  int threads = 0;            ///< 0 = one per core
};

struct QuantizedTensor {
  std::string name;
  std::vector<size_t> shape;
  WeightType from = WeightType::kF32, to = WeightType::kF32;
  /// Rows are no whole blocks of the type that was asked for: `to` is what stands in.
  bool fell_back = false;
  size_t bytes = 0;
  double error = 0;  ///< root mean square, beside that of the source's numbers
};

struct QuantizeReport {
  std::vector<QuantizedTensor> tensors;
  size_t bytes = 0;  ///< of the file
};

/// The template of a folder's model, for QuantizeRequest; "" where there is none.
std::string chat_template_of(const std::filesystem::path& folder);

/// The types that may be asked for: the dense types, Q8_0, Q4_0 and Q4_K.
std::span<const WeightType> quantize_types();

/// Writes request.output, whole or not at all. Vectors stay f32. In files of 4 bits the embedding
/// and the output matrix are Q8_0. Rows that are no whole blocks of Q4_K are Q5_0, those that are
/// no whole blocks of 32 F16. Throws what Model::load throws for the source, kUnsupported for what
/// GGUF cannot say, kIo.
QuantizeReport quantize(const QuantizeRequest& request, const Progress& progress);

}  // namespace pith
