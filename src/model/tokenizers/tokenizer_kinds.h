#pragma once
// The tokenizers that load_tokenizer() chooses from.

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "model/tokenizers/tokenizer_vocab.h"

namespace pith {

/// BPE from a tokenizer.json of the Hugging Face tokenizers library.
std::unique_ptr<Tokenizer> load_json_tokenizer(const std::filesystem::path& file,
                                               const TokenizerConfig& config);

/// BPE or unigram from a tokenizer.model of SentencePiece.
std::unique_ptr<Tokenizer> load_sentencepiece_tokenizer(const std::filesystem::path& file,
                                                        const TokenizerConfig& config);

/// The parts of a tokenizer.model, by ids.
struct SentencePieces {
  struct Piece {
    std::string text;
    float score = 0;
    bool control = false, unknown = false, byte = false, unused = false;
  };
  std::vector<Piece> pieces;
  bool bpe = false;              ///< otherwise unigram, words or characters
  bool add_dummy_prefix = true;  ///< a space before the text
};
/// Throws as load_sentencepiece_tokenizer.
SentencePieces read_sentence_pieces(const std::filesystem::path& file);

class Gguf;  // core/gguf.h

/// Byte-level BPE or pieces with scores from the keys of a GGUF file. Throws kCorrupt, kUnsupported
/// for another kind of tokenizer or a pre-tokenizer that is not known, by name.
std::unique_ptr<Tokenizer> load_gguf_tokenizer(const Gguf& file);

}  // namespace pith
