#pragma once
// The tokenizer of a BPE model, wherever its parts come from: added tokens, then normalizer, added
// tokens again (those that are looked for in normalized text), pre-tokenizer, BPE. As the Hugging
// Face tokenizers library does it.

#include <memory>
#include <vector>

#include "model/tokenizers/tokenizer_bpe.h"
#include "model/tokenizers/tokenizer_split.h"
#include "model/tokenizers/tokenizer_vocab.h"

namespace pith {

struct BpeParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe model;
  std::vector<AddedToken> added;  // a text once
};

class BpeTokenizer : public VocabTokenizer {
 public:
  /// Throws kCorrupt for ids that contradict each other.
  explicit BpeTokenizer(BpeParts parts);

  std::vector<int32_t> encode_within(std::string_view text,
                                     std::span<const TextSpan> trusted) const override;
  std::optional<int32_t> find(std::string_view token) const override;

 protected:
  /// Of a token in the model's letters.
  std::string bytes_of_letters(std::string_view token) const { return model_.bytes_of(token); }

 private:
  static void encode_words(const Words& words, Bpe::Encoder& encoder, std::vector<int32_t>& out);
  void add_tokens(std::vector<AddedToken> added);
  void note_added(const AddedToken& token);

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe model_;
  StringMap<int32_t> added_ids_;
  AddedTokenFinder in_text_, in_normalized_;
};

}  // namespace pith
