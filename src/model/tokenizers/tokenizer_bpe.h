#pragma once
// Byte pair encoding (Sennrich et al. 2016) of one word with the vocabulary and merges of a
// tokenizer.json. A word starts as its bytes (byte-level) or its characters; the pair of
// neighbours with the lowest rank merges, leftmost first, until none is left.
// Cost: O(n log n) for a word of n bytes: a heap of candidate pairs over a linked list.

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "model/tokenizers/token_table.h"

namespace pith {

/// Strings as keys that can be looked up by a view.
struct StringHash {
  using is_transparent = void;
  size_t operator()(std::string_view s) const noexcept { return std::hash<std::string_view>()(s); }
};
template <typename T>
using StringMap = std::unordered_map<std::string, T, StringHash, std::equal_to<>>;

/// Byte-level BPE writes each byte as a letter that can be seen: itself if it can, else one of
/// U+0100 and on (GPT-2's table).
std::string byte_to_letter(uint8_t byte);
/// The bytes that a vocabulary entry stands for, or nothing if a character is no such letter.
std::optional<std::string> letters_to_bytes(std::string_view letters);

class Bpe {
 public:
  /// Reads the "model" of a tokenizer.json. Throws kUnsupported for an option or a type that is
  /// not known, kCorrupt for merges that the vocabulary lacks.
  Bpe(const nlohmann::json& model, bool byte_level);
  /// Byte-level, without an unknown token; `ids` are those of the vocabulary's entries. `merges`
  /// are "left right", by rank: the first space that is not the first byte parts them. Throws
  /// kCorrupt for merges that the vocabulary lacks.
  Bpe(TokenTable vocab, std::vector<int32_t> ids, std::span<const std::string_view> merges,
      bool ignore_merges);

  /// Appends the ids of one word to `out`.
  class Encoder;

  /// Entries and their ids.
  const TokenTable& vocab() const { return vocab_; }
  const std::vector<int32_t>& ids() const { return ids_; }
  std::optional<int32_t> find(std::string_view token) const;
  /// The text of a vocabulary entry.
  std::string bytes_of(std::string_view token) const;

 private:
  struct Merge {
    int32_t left, right, id;
  };
  void read_options(const nlohmann::json& model);
  void read_vocab(const nlohmann::json& model);
  void read_merges(const nlohmann::json& merges);
  void read_bytes();
  void reserve_merges(size_t count);
  void add_merge(std::string_view left, std::string_view right);
  size_t slot_of(int32_t left, int32_t right) const noexcept;
  /// The rank of the merge of two tokens, or -1.
  int32_t merge_of(int32_t left, int32_t right) const noexcept {
    return slots_[slot_of(left, right)];
  }

  bool byte_level_;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unknown_ = false;
  int32_t unknown_ = -1;
  TokenTable vocab_;
  std::vector<int32_t> ids_;             // of vocab_'s entries
  std::vector<Merge> merges_;            // by rank
  std::vector<int32_t> slots_;           // [power of two] open addressing: ranks, -1: free
  std::array<int32_t, 256> byte_ids_{};  // token of each byte, or -1: real vocabularies lack some
};

/// Encodes words one after the other, with buffers and a cache of its own: one for each call of
/// Tokenizer::encode, so that the model stays immutable.
class Bpe::Encoder {
 public:
  explicit Encoder(const Bpe& model) : model_(model) {}
  void encode(std::string_view word, std::vector<int32_t>& out);

 private:
  struct Symbol {
    int32_t id, previous, next;  // id < 0: merged away
  };
  struct Candidate {
    int32_t rank, at, id;
  };
  struct Cached {
    size_t begin, end;  // of cached_ids_
  };
  void start(std::string_view word);
  void start_characters(std::string_view word);
  bool fall_back(std::string_view character);
  void add_symbol(int32_t id);
  void add_known(int32_t id);
  void add_unknown();
  void add_candidate(int32_t left);
  void merge_all();
  void encode_uncached(std::string_view word, std::vector<int32_t>& out);

  const Bpe& model_;
  std::vector<Symbol> symbols_;
  bool unknown_waits_ = false;  // for the next known symbol or the word's end
  std::vector<Candidate> heap_;
  StringMap<Cached> cache_;
  std::vector<int32_t> cached_ids_;
};

}  // namespace pith
