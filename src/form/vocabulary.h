#pragma once
// The texts of all tokens as tries, in the order of a walk.

#include <cstdint>
#include <string>
#include <vector>

#include "pith/tokenizer.h"

namespace pith::form {

struct Trie {
  struct Node {
    uint8_t byte;
    uint16_t depth;                // of the first byte: 1
    uint32_t end;                  // the first node that is not below it
    uint32_t first_token, tokens;  // those that end here, in `ids`
  };
  std::vector<Node> nodes;  // each before those below it
  std::vector<int32_t> ids;
  size_t depth = 0;
};

struct Vocabulary {
  explicit Vocabulary(const Tokenizer& tokenizer);

  std::vector<std::string> texts;  ///< by id; "" for tokens without one
  Trie all;
  Trie others;  ///< without plain ones
  /// Tokens of whole characters that stand for themselves inside of a JSON string.
  std::vector<uint32_t> plain;
  size_t longest_plain = 0;  ///< characters
  size_t words() const { return plain.size(); }
};

}  // namespace pith::form
