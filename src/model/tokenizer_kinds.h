#pragma once
// The tokenizers that load_tokenizer() chooses from.

#include <filesystem>
#include <memory>

#include "model/tokenizer_vocab.h"

namespace pith {

/// BPE from a tokenizer.json of the Hugging Face tokenizers library.
std::unique_ptr<Tokenizer> load_json_tokenizer(const std::filesystem::path& file,
                                               const TokenizerConfig& config);

/// BPE or unigram from a tokenizer.model of SentencePiece.
std::unique_ptr<Tokenizer> load_sentencepiece_tokenizer(const std::filesystem::path& file,
                                                        const TokenizerConfig& config);

class Gguf;  // core/gguf.h

/// Byte-level BPE or pieces with scores from the keys of a GGUF file. Throws kCorrupt, kUnsupported
/// for another kind of tokenizer or a pre-tokenizer that is not known, by name.
std::unique_ptr<Tokenizer> load_gguf_tokenizer(const Gguf& file);

}  // namespace pith
