#pragma once
// Models in GGUF files: their config from the file's keys, their tensors under Hugging Face's
// names and in its order of rows.

#include <filesystem>

#include "core/gguf.h"
#include "model/loaders/config.h"
#include "model/loaders/model_tensors.h"

namespace pith {

/// Whether a model's path names a GGUF file rather than a folder.
bool is_gguf_path(const std::filesystem::path& path);

/// Whether a GGUF file, if it is one, has a tokenizer too.
bool holds_tokenizer(const std::filesystem::path& path);

/// The divisor of each frequency of RoPE: Llama 3's scaling, and LongRoPE's two lists.
inline constexpr const char* kRopeDivisors = "rope_freqs.weight";
inline constexpr const char* kLongDivisors = "rope_factors_long.weight";
inline constexpr const char* kShortDivisors = "rope_factors_short.weight";

/// Whether files of an architecture (GGUF's name) store rows of queries and keys for a RoPE that
/// rotates neighbours, 2 i and 2 i + 1, where Hugging Face's rotates i and i + D / 2.
bool turns_neighbours(std::string_view architecture);

/// GGUF's name of an architecture and of a tensor of Hugging Face's; "" if it has none.
std::string gguf_architecture(const Architecture& architecture);
std::string gguf_name(const std::string& hugging_face, const Architecture& architecture);

/// Throws kCorrupt (a key that is missing or absurd, named) or kUnsupported (an architecture or a
/// variant that is not supported, named, with the list of those that are).
ConfigFile read_gguf_config(const Gguf& file);

/// Fused matrices are taken apart where the architecture has them apart. Rows of queries and keys
/// that are stored for neighbours are put in Hugging Face's order, in this process's own copy of
/// their pages, so that nothing behind knows where a model came from. Throws kCorrupt for shapes
/// that the config does not allow.
ModelTensors read_gguf_tensors(Gguf file, const ConfigFile& config);

}  // namespace pith
