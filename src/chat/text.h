#pragma once
// A string of a template that remembers which of its bytes came from data (messages, tools) and
// which from the template itself. Special tokens count in the latter only, so that a user who types
// "<|im_end|>" has typed text. Every operation keeps the marks. Characters are Unicode code points,
// as in Python; bytes are valid UTF-8 throughout.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pith::chat {

enum class Origin : uint8_t { kTemplate, kData };

class Text {
 public:
  /// Bytes up to `end`, from where the run before ends.
  struct Run {
    size_t end;
    Origin origin;
  };

  Text() = default;
  Text(std::string bytes, Origin origin);

  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }

  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  /// Appends bytes [begin, end) of `other`.
  void append(const Text& other, size_t begin, size_t end);
  Text slice(size_t begin, size_t end) const;
  /// Jinja2's Markup: what is added to such a string is escaped for HTML.
  bool is_markup() const { return markup_; }
  Text as_markup() const;

 private:
  bool markup_ = false;
  std::string bytes_;
  std::vector<Run> runs_;  // neighbours differ in origin; the last ends at size()
};

/// Length in characters.
size_t count_characters(std::string_view text) noexcept;
/// Byte at which character `index` begins; size() if there are fewer.
size_t offset_of(std::string_view text, size_t index) noexcept;
/// Bytes of the character at `at`, which is below size().
size_t character_size(std::string_view text, size_t at) noexcept;
char32_t character_at(std::string_view text, size_t at) noexcept;
/// str.isspace() of one character.
bool is_space(char32_t c) noexcept;
/// str.isalpha() and str.isalnum() of one character.
bool is_letter(char32_t c) noexcept;
bool is_alphanumeric(char32_t c) noexcept;
/// str.isdecimal(), isdigit() and isnumeric() of one character, each wider than the one before.
bool is_decimal(char32_t c) noexcept;
bool is_digit(char32_t c) noexcept;
bool is_numeric(char32_t c) noexcept;
/// str.isprintable() of one character.
bool is_printable(char32_t c) noexcept;

/// One line of str.splitlines(): bytes [begin, end), and where the next begins.
struct Line {
  size_t begin, end, next;
};
std::vector<Line> split_lines(std::string_view text);

/// str.strip(): of white space, or of any of the characters in `set` if it is given.
Text strip(const Text& text, bool left, bool right, const Text* set = nullptr);
/// With & < > ' " as HTML writes them; as it is if it is markup. The result is.
Text escape(const Text& text);
/// The first place of `wanted` at or behind `from`, the last place; npos: none. In linear time.
size_t find_in(std::string_view text, std::string_view wanted, size_t from = 0) noexcept;
size_t find_last_in(std::string_view text, std::string_view wanted);
/// Every occurrence of `from`, or the first `count` of them, becomes `to`.
Text replace(const Text& text, std::string_view from, const Text& to, int64_t count = -1);
/// kTitle: str.title(). kWords: Jinja's filter title, whose words begin after white space and
/// -({[<.
enum class Case : uint8_t { kUpper, kLower, kTitle, kWords, kCapitalize };
Text change_case(const Text& text, Case form);

}  // namespace pith::chat
