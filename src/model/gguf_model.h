#pragma once
// Models in GGUF files: their config from the file's keys, their tensors under Hugging Face's
// names and in its order of rows.

#include <filesystem>

#include "core/gguf.h"
#include "model/config.h"
#include "model/model_tensors.h"

namespace pith {

/// Whether a model's path names a GGUF file rather than a folder.
bool is_gguf_path(const std::filesystem::path& path);

/// Whether a GGUF file, if it is one, has a tokenizer too.
bool holds_tokenizer(const std::filesystem::path& path);

/// Llama 3's scaling of RoPE: what each frequency is divided by.
inline constexpr const char* kRopeDivisors = "rope_freqs.weight";

/// Throws kCorrupt (a key that is missing or absurd, named) or kUnsupported (an architecture or a
/// variant that is not supported, named, with the list of those that are).
ConfigFile read_gguf_config(const Gguf& file);

/// Fused matrices are taken apart. Keys and queries of "llama" files are in an order of rows of
/// their own; they are copied, in order, so that nothing behind knows where a model came from.
/// Throws kCorrupt for shapes that the config does not allow.
ModelTensors read_gguf_tensors(Gguf file, const ConfigFile& config);

}  // namespace pith
