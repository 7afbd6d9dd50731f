#pragma once
// Text to token ids and back: tokenizer.json of Hugging Face folders (byte-level BPE of Llama 3,
// Qwen 2/3, GPT-2; BPE with byte fallback of Llama 2, Mistral), SentencePiece's tokenizer.model,
// and GGUF files. Ids equal those of these libraries.
// Cost: O(n log n) in the longest word, O(n) in the text; several MB/s on one core.
// A tokenizer is immutable after loading; any number of threads may use it at once.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pith/utf8.h"

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of `text`, without a beginning-of-sequence token. Invalid UTF-8 becomes U+FFFD; characters
  /// without a token (often control characters) become the unknown token or are left out.
  /// parse_special turns special tokens spelled out in the text into their ids; use false for
  /// untrusted text. Throws kInvalidArgument above kMaxTextBytes.
  virtual std::vector<int32_t> encode(std::string_view text, bool parse_special = true) const = 0;

  /// The text of `ids`: the bytes of their pieces, without the space that a SentencePiece model
  /// adds in front. Bytes that are not UTF-8 stay as they are. Throws kInvalidArgument for an id
  /// outside [0, vocab_size()).
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special = false) const = 0;

  /// The raw bytes of one token; may be part of a character (see Utf8Stream).
  /// Throws kInvalidArgument as decode() does.
  virtual std::string piece(int32_t id) const = 0;

  /// Bytes of the longest token's text; 1 at least.
  virtual size_t longest_piece() const = 0;

  /// Number of ids, added tokens included. A model's logits may have more columns (padding).
  virtual int32_t vocab_size() const = 0;

  /// The token that starts a text, or -1.
  virtual int32_t bos() const = 0;

  /// The first of eos_ids(), or -1.
  int32_t eos() const { return eos_ids().empty() ? -1 : eos_ids().front(); }

  /// All tokens that end an answer: the tokenizer's own first, then those of
  /// generation_config.json and config.json.
  virtual const std::vector<int32_t>& eos_ids() const = 0;

  /// Whether the model expects bos() in front of a text.
  virtual bool add_bos() const = 0;

  /// True for tokens that decode(ids, true) leaves out.
  virtual bool is_special(int32_t id) const = 0;

  /// The id of a token by its spelling in the file ("<|eot_id|>", "</s>"); empty if unknown.
  virtual std::optional<int32_t> find(std::string_view token) const = 0;

  /// Longest text of one encode(), so that offsets fit into 32 bits.
  static constexpr size_t kMaxTextBytes = size_t{1} << 28;
};

/// Throws kContextFull if a text of so many bytes has more than `context` tokens whatever it says,
/// so that it need not be tokenized to be refused. A token counts as longest_piece() bytes; bytes
/// that a tokenizer leaves out count too.
void require_may_fit(const Tokenizer& tokenizer, size_t bytes, size_t context);

/// Loads a GGUF file's tokenizer, or folder/tokenizer.json, or folder/tokenizer.model, with the
/// special tokens of tokenizer_config.json, special_tokens_map.json, added_tokens.json,
/// generation_config.json and config.json. Throws kNotFound, kCorrupt with the file's name, or
/// kUnsupported with the feature's name.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& folder);

}  // namespace pith

#pragma GCC visibility pop
