#pragma once
// UTF-8 as tokenizers need it: any bytes in, valid text out. Invalid bytes are replaced as Python's
// errors="replace" and the Unicode standard (section 3.9, "maximal subparts") do: each longest
// prefix of a valid character, or else each byte, becomes one U+FFFD. O(1) per byte.

#include <cstdint>
#include <string>
#include <string_view>

namespace pith {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Utf8Kind : uint8_t { kValid, kInvalid, kCut };

/// The mark at the front of a text.
struct Utf8Step {
  uint8_t length;  ///< bytes of the character, or of the part to be replaced
  Utf8Kind kind;   ///< kCut: the text ended inside a character that was valid so far
};

/// Looks at the front of `text`, which must not be empty.
Utf8Step utf8_step(std::string_view text) noexcept;

/// True if all of `text` is valid UTF-8.
bool is_utf8(std::string_view text) noexcept;

/// `text` with its invalid parts replaced.
std::string to_utf8(std::string_view text);

/// Appends the character `code`, which must be a Unicode scalar value.
void append_utf8(std::string& out, char32_t code);

/// The text of a piece in SentencePiece's spelling: U+2581 is a space and, with byte_tokens,
/// "<0x0A>" is the byte 10.
std::string sentencepiece_bytes(std::string_view piece, bool byte_tokens);

}  // namespace pith
