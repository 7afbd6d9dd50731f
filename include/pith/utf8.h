#pragma once
// Valid UTF-8 out of pieces of any bytes.

#include <string>
#include <string_view>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// Turns a stream of pieces into valid UTF-8: holds incomplete characters back, and replaces
/// invalid bytes by U+FFFD.
class Utf8Stream {
 public:
  /// Adds bytes and returns the characters that are complete now.
  std::string push(std::string_view bytes);
  /// Ends the stream: returns U+FFFD for an incomplete character, else "".
  std::string flush();

 private:
  std::string held_;  // [0..3] bytes, a proper prefix of one character
};

}  // namespace pith

#pragma GCC visibility pop
