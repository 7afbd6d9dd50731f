#pragma once
// Shared by both kinds of tokenizer: the table of pieces, decoding, and the special tokens that
// the files beside the tokenizer name.

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizers/token_table.h"
#include "model/tokenizers/tokenizer_added.h"
#include "pith/error.h"
#include "pith/tokenizer.h"

namespace pith {

/// The facts about the tokenizer in a model folder's small files.
struct TokenizerConfig {
  // tokenizer_config.json, then special_tokens_map.json. An empty name: "there is none".
  std::optional<std::string> bos, eos;
  std::map<std::string, std::string> names;  // pad_token, unk_token, ... as templates call them
  std::optional<bool> add_bos;
  bool llama_class = false;       // LlamaTokenizer or LlamaTokenizerFast: adds bos unless told
  bool legacy = true;             // of LlamaTokenizer: a space after every special token
  std::vector<AddedToken> added;  // added_tokens_decoder, and added_tokens.json
  // generation_config.json, then config.json
  std::vector<int32_t> bos_ids, eos_ids;
};

/// Throws kCorrupt for a file that is there but malformed.
TokenizerConfig read_tokenizer_config(const std::filesystem::path& folder);

/// Throws kNotFound, kCorrupt.
nlohmann::json read_tokenizer_json(const std::filesystem::path& file);
std::string read_tokenizer_file(const std::filesystem::path& file);

/// An entry of an "added_tokens" list without its id.
AddedToken parse_added_token(const nlohmann::json& spec);

/// Runs `body`; its errors get the file's name in front, and JSON's become kCorrupt.
template <typename Body>
auto with_file_name(const std::filesystem::path& file, const Body& body);

[[noreturn]] void throw_named(const std::filesystem::path& file, ErrorCode code, const char* what);

class VocabTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const final {
    const TextSpan all{0, SIZE_MAX};  // invalid text grows when it is repaired
    return encode_within(text, {&all, parse_special ? size_t{1} : size_t{0}});
  }
  /// As encode(), where special tokens count only within one of the `trusted` spans, in order and
  /// apart: elsewhere, and over their ends, they are ordinary text. Text between special tokens is
  /// tokenized as one text, whatever spans it crosses. Throws kInvalidArgument for invalid UTF-8
  /// with spans, but for one without an end (SIZE_MAX).
  virtual std::vector<int32_t> encode_within(std::string_view text,
                                             std::span<const TextSpan> trusted) const = 0;
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  std::string piece(int32_t id) const override { return std::string(bytes_of(entry(id))); }
  size_t longest_piece() const override { return longest_; }
  int32_t vocab_size() const override { return static_cast<int32_t>(entries_.size()); }
  int32_t bos() const override { return bos_; }
  const std::vector<int32_t>& eos_ids() const override { return eos_; }
  bool add_bos() const override { return add_bos_; }
  bool is_special(int32_t id) const override { return entry(id).special; }
  /// The special tokens that the files name, but bos and eos: "pad_token" and its text, and so on.
  const std::map<std::string, std::string>& special_names() const { return special_names_; }

 protected:
  /// Makes entries_ reach to the id `highest`, or to the most that put() lets pass. Ids between
  /// may stay without a token (Phi-4-mini has such): they stand for nothing in a text.
  void make_room(int32_t highest);
  /// Fills in an entry. Throws kCorrupt if the id is taken or past the end of entries_.
  void put(int32_t id, std::string_view spelled, std::string_view bytes, bool special);
  /// Gives an entry another text. Throws kInvalidArgument for an id that there is not.
  void replace(int32_t id, std::string_view bytes, bool special);
  /// Settles bos, eos and add_bos: the files' word first, then these.
  void settle(const TokenizerConfig& config, int32_t bos, int32_t eos, bool add_bos);
  /// The same, where the file itself says it all. Ids below 0 are none.
  void settle(int32_t bos, const std::vector<int32_t>& ends, bool add_bos);
  /// Throws as encode_within() does.
  static void check_text(std::string_view text, std::span<const TextSpan> trusted);

  bool strips_first_space_ = false;  // a space that encode() put in front
  std::map<std::string, std::string> special_names_;

 private:
  /// The text of a token: a number of pieces_, or -1 for nothing.
  struct Entry {
    int32_t piece = -1;
    bool special = false;
    bool present = false;
  };
  const Entry& entry(int32_t id) const;
  std::string_view bytes_of(const Entry& entry) const {
    return entry.piece < 0 ? std::string_view() : pieces_[static_cast<size_t>(entry.piece)];
  }
  void set(Entry& entry, std::string_view bytes, bool special);

  std::vector<Entry> entries_;  // [vocab_size]
  PackedStrings pieces_;
  size_t longest_ = 1;
  int32_t bos_ = -1;
  std::vector<int32_t> eos_;
  bool add_bos_ = false;
};

template <typename Body>
auto with_file_name(const std::filesystem::path& file, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw_named(file, error.code(), error.what());
  } catch (const nlohmann::json::exception& error) {
    throw_named(file, ErrorCode::kCorrupt, error.what());
  }
}

/// encode_within() of any tokenizer that load_tokenizer() gives. Throws kUnsupported for another.
std::vector<int32_t> encode_within(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const TextSpan> trusted);

}  // namespace pith
