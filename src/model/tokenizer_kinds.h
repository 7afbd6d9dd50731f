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

}  // namespace pith
