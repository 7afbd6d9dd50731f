#pragma once
// A template's text as tokens, white space already gone where trim_blocks, lstrip_blocks and the
// signs of tags ask for it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pith::chat {

struct Token {
  enum class Kind : uint8_t {
    kText,         // outside of tags
    kOutputBegin,  // {{
    kOutputEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // escapes resolved
    kInteger,
    kFloat,
    kOperator,
    kEnd
  };
  Kind kind;
  std::string value;
  int line;
};

/// The base of a number that begins with 0x, 0o or 0b, in either case; 0: it begins otherwise.
int base_of(std::string_view number);
/// Throws as parse() does.
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace pith::chat
