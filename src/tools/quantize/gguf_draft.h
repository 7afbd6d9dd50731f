#pragma once
// A model as a GGUF file is to hold it, before types are chosen: keys, and tensors under GGUF's
// names.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/loaders/config.h"
#include "model/loaders/model_tensors.h"
#include "tools/quantize/gguf_writer.h"

namespace pith {

struct DraftTensor {
  std::string name;
  WeightType type = WeightType::kF32;  ///< of the source
  std::vector<size_t> shape;
  const std::byte* data = nullptr;
  /// Heads whose rows are put in the order of a RoPE that turns neighbours; 0: none.
  size_t turned_heads = 0;
  float offset = 0;             ///< added to every number (norms)
  std::vector<float> own = {};  ///< numbers that no file holds; then there is no data
};

struct GgufDraft {
  GgufKeys keys;
  std::vector<DraftTensor> tensors;
  std::shared_ptr<const void> files;  ///< what the tensors point into
};

/// All keys and tensors as they are, but for those of a split file and of types.
GgufDraft draft_of_gguf(const std::filesystem::path& file);

/// Of a folder in Hugging Face's layout. `chat_template` is the model's own, "" = none. Throws
/// kUnsupported, by name, for what a GGUF file cannot say: an architecture, a tensor, a sliding
/// window that files of this architecture are read without, a tokenizer.
GgufDraft draft_of_folder(const std::filesystem::path& folder, const std::string& chat_template);

/// The keys tokenizer.ggml.* of a folder's tokenizer.json, for a vocabulary of `vocab` ids. Throws
/// kUnsupported for a tokenizer that the file's keys cannot say, found by encoding texts with both.
void add_tokenizer_keys(const std::filesystem::path& folder, int vocab, GgufKeys& keys);

}  // namespace pith
