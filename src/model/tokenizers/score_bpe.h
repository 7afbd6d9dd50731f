#pragma once
// Pieces with scores, as GGUF files keep SentencePiece's BPE models: of all neighbours whose
// concatenation is a piece, the two with the highest score merge, leftmost first, until none is
// left. Text that is no piece then is spelled as its bytes.
// Cost: O(n log n) for a text of n bytes, which is taken as one word.

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "model/tokenizers/token_table.h"

namespace pith {

class ScoreBpe {
 public:
  ScoreBpe() { byte_ids_.fill(-1); }

  enum class Kind : uint8_t {
    kMerged,  ///< merges may make it
    kUnused,  ///< the same, but it is not kept: it falls apart into what it was made of
    kApart,   ///< no merge makes it; find() finds it
  };
  void reserve(size_t tokens, size_t bytes);
  /// False if there is a token with this text already, which then counts.
  bool add(std::string_view text, int32_t id, float score, Kind kind);
  std::optional<int32_t> find(std::string_view text) const;
  void set_byte(uint8_t byte, int32_t id) { byte_ids_[byte] = id; }
  /// The token for a byte without one; -1: it is left out.
  void set_unknown(int32_t id) { unknown_ = id; }

  /// Appends the ids of `text`, in which spaces are U+2581 already.
  void encode(std::string_view text, std::vector<int32_t>& out) const;

 private:
  struct Piece {
    int32_t id;
    float score;
    Kind kind;
  };
  struct Symbol {
    size_t begin, end;       // of the text
    const Piece* piece;      // null: none
    int32_t left, right;     // what it was made of, or -1
    int32_t previous, next;  // -1: none
    bool merged = false;     // into another symbol
  };
  struct Candidate {
    float score;
    int32_t left, right;
    size_t begin;
    const Piece* piece;
  };
  struct Work;

  const Piece* piece_of(std::string_view text) const;
  void offer(Work& work, int32_t left) const;
  void merge(Work& work, const Candidate& pair) const;
  void emit(const Work& work, int32_t symbol, std::vector<int32_t>& out) const;
  void emit_bytes(std::string_view bytes, std::vector<int32_t>& out) const;

  TokenTable table_;
  std::vector<Piece> pieces_;  // of table_'s entries
  size_t longest_ = 0;         // bytes of a piece
  std::array<int32_t, 256> byte_ids_{};
  int32_t unknown_ = -1;
};

}  // namespace pith
