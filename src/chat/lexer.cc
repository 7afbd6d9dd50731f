#include "chat/lexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "chat/syntax.h"
#include "core/utf8.h"

namespace pith::chat {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/// Lines end in "\n" alone, and the last one's end goes: as Jinja reads a source.
std::string normal_lines(std::string_view source) {
  std::string out;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : name_(name), text_(source) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) text_and_tag();
    add(Token::Kind::kEnd, "");
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    fail_at(ErrorCode::kCorrupt, name_, line_, what);
  }
  void add(Token::Kind kind, std::string value) { out_.push_back({kind, std::move(value), line_}); }
  bool ahead(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  char peek(size_t more = 0) const { return at_ + more < text_.size() ? text_[at_ + more] : '\0'; }
  void advance(size_t count) {
    line_ +=
        static_cast<int>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                    text_.begin() + static_cast<ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }
  void skip_space() {
    size_t end = at_;
    while (end < text_.size() && is_space(character_at(text_, end)))
      end += character_size(text_, end);
    advance(end - at_);
  }

  /// The text before a tag of kind `tag` (the character behind the brace) with this sign.
  std::string_view before_tag(std::string_view text, char tag, char sign) const {
    if (sign == '-') {
      const Text kept = strip(Text(std::string(text), Origin::kTemplate), false, true);
      return text.substr(0, kept.size());
    }
    if (sign == '+' || tag == '{') return text;
    const size_t newline = text.rfind('\n');
    if (newline == text.npos && !line_start_) return text;
    const size_t start = newline == text.npos ? 0 : newline + 1;
    const auto last = text.substr(start);
    return std::all_of(last.begin(), last.end(), is_blank) ? text.substr(0, start) : text;
  }

  void text_and_tag() {
    size_t open = text_.find('{', at_);
    while (open != text_.npos && open + 1 < text_.size() &&
           std::string_view("{%#").find(text_[open + 1]) == std::string_view::npos)
      open = text_.find('{', open + 1);
    if (open == text_.npos || open + 1 >= text_.size()) {
      add(Token::Kind::kText, std::string(text_.substr(at_)));
      return advance(text_.size() - at_);
    }
    const char tag = text_[open + 1];
    const char sign = open + 2 < text_.size() ? text_[open + 2] : '\0';
    const bool is_signed = sign == '-' || sign == '+';
    const auto text = before_tag(text_.substr(at_, open - at_), tag, is_signed ? sign : '\0');
    if (!text.empty()) add(Token::Kind::kText, std::string(text));
    advance(open - at_ + 2 + (is_signed ? 1 : 0));
    line_start_ = false;
    if (tag == '#') return comment();
    if (tag == '%' && raw()) return;
    add(tag == '{' ? Token::Kind::kOutputBegin : Token::Kind::kBlockBegin, "");
    inside(tag == '{' ? "}}" : "%}");
  }

  /// Takes the end of a tag, "#}" or "%}" with its sign, and the space that goes with it.
  bool take_end(std::string_view end) {
    const bool block = end != "}}";
    if (peek() == '-' && text_.substr(at_ + 1).starts_with(end)) {
      advance(3);
      const size_t start = at_;
      skip_space();
      line_start_ = at_ > start && text_[at_ - 1] == '\n';
      return true;
    }
    const bool keep = block && peek() == '+' && text_.substr(at_ + 1).starts_with(end);
    if (!keep && !ahead(end)) return false;
    advance(keep ? 3 : 2);
    line_start_ = false;
    if (block && !keep && peek() == '\n') {
      advance(1);
      line_start_ = true;
    }
    return true;
  }

  void comment() {
    const int first = line_;
    while (at_ < text_.size()) {
      if (take_end("#}")) return;
      advance(1);
    }
    line_ = first;
    fail("a comment without its end #}");
  }

  /// {% raw %} ... {% endraw %}: everything between is text.
  bool raw() {
    const size_t start = at_;
    const int start_line = line_;
    const auto word = [&](std::string_view wanted) {
      skip_space();
      if (!ahead(wanted)) return false;
      advance(wanted.size());
      skip_space();
      return peek() == '%' || ((peek() == '-' || peek() == '+') && peek(1) == '%');
    };
    if (!word("raw") || peek() == '+') {
      at_ = start, line_ = start_line;
      return false;
    }
    const bool strips = peek() == '-';
    advance(strips ? 3 : 2);  // its newline stays: Jinja trims none here
    if (strips) skip_space();
    line_start_ = false;
    const size_t begin = at_;
    while (at_ < text_.size()) {
      const size_t open = text_.find("{%", at_);
      if (open == text_.npos) break;
      advance(open - at_ + 2);
      const char sign = peek();
      if (sign == '-' || sign == '+') advance(1);
      if (!word("endraw") || !take_end("%}")) continue;
      const auto text = before_tag(text_.substr(begin, open - begin), '%', sign);
      if (!text.empty()) add(Token::Kind::kText, std::string(text));
      return true;
    }
    line_ = start_line;
    fail("{% raw %} without {% endraw %}");
  }

  /// Tokens of an expression or a statement, and the end of the tag.
  void inside(std::string_view end) {
    std::string open;
    const int first = line_;
    for (;;) {
      skip_space();
      if (at_ >= text_.size()) {
        line_ = first;
        fail(fmt::format("a tag without its end {}", end));
      }
      if (open.empty() && take_end(end)) {
        return add(end == "}}" ? Token::Kind::kOutputEnd : Token::Kind::kBlockEnd, "");
      }
      const char c = peek();
      if (is_letter(c)) {
        name();
      } else if (is_digit(c)) {
        number();
      } else if (c == '\'' || c == '"') {
        string();
      } else {
        operation(open);
      }
    }
  }

  void name() {
    size_t end = at_;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
    add(Token::Kind::kName, std::string(text_.substr(at_, end - at_)));
    advance(end - at_);
  }

  /// An integer behind 0x, 0o or 0b, as a decimal.
  bool prefixed_number() {
    const int base = base_of(text_.substr(at_));
    if (base == 0) return false;
    size_t end = at_ + 2;
    while (end < text_.size() && (is_letter(text_[end]) || is_digit(text_[end]))) ++end;
    std::string digits(text_.substr(at_ + 2, end - at_ - 2));
    std::erase(digits, '_');
    int64_t value = 0;
    const char* last = digits.data() + digits.size();
    const auto read = std::from_chars(digits.data(), last, value, base);
    if (read.ec != std::errc() || read.ptr != last) fail("a number that is none in its base");
    add(Token::Kind::kInteger, std::to_string(value));
    advance(end - at_);
    return true;
  }

  void number() {
    if (prefixed_number()) return;
    size_t end = at_;
    const auto digits = [&] {
      while (end < text_.size() && (is_digit(text_[end]) || text_[end] == '_')) ++end;
    };
    const auto digit_at = [&](size_t i) { return i < text_.size() && is_digit(text_[i]); };
    digits();
    bool is_float = false;
    const auto letter = [&](size_t i) { return i < text_.size() ? text_[i] : '\0'; };
    if (letter(end) == '.' && digit_at(end + 1)) {
      is_float = true;
      ++end;
      digits();
    }
    if (letter(end) == 'e' || letter(end) == 'E') {
      const size_t sign = letter(end + 1) == '+' || letter(end + 1) == '-' ? 1 : 0;
      if (digit_at(end + 1 + sign)) {
        is_float = true;
        end += 1 + sign;
        digits();
      }
    }
    if (is_letter(letter(end))) {
      fail("a number with a letter behind it");
    }
    std::string value(text_.substr(at_, end - at_));
    std::erase(value, '_');
    add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, std::move(value));
    advance(end - at_);
  }

  void string() {
    const char quote = peek();
    const int first = line_;
    std::string value;
    advance(1);
    while (peek() != quote) {
      if (at_ >= text_.size()) {
        line_ = first;
        fail("a string without its end");
      }
      if (peek() == '\\' && at_ + 1 < text_.size()) {
        escape(value);
      } else {
        value += peek();
        advance(1);
      }
    }
    advance(1);
    add(Token::Kind::kString, std::move(value));
  }

  /// A backslash and what it stands for in Python; unknown ones stay as they are.
  void escape(std::string& out) {
    static constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";
    const char c = peek(1);
    if (const size_t known = kLetters.find(c); known != kLetters.npos) {
      out += kMeanings[known];
      return advance(2);
    }
    if (c == '\n') return advance(2);
    const bool octal = c >= '0' && c <= '7';
    const size_t digits = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (digits == 0) {
      out += '\\';
      return advance(1);
    }
    const char* const set = octal ? "01234567" : "0123456789abcdefABCDEF";
    const size_t start = at_ + (octal ? 1 : 2);
    size_t end = start;
    while (end < text_.size() && end < start + digits &&
           std::string_view(set).find(text_[end]) != std::string_view::npos)
      ++end;
    if (!octal && end - start < digits) fail("a \\x, \\u or \\U with too few digits");
    const auto code =
        std::stoul(std::string(text_.substr(start, end - start)), nullptr, octal ? 8 : 16);
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) {
      fail("an escape that is no character of Unicode");
    }
    append_utf8(out, static_cast<char32_t>(code));
    advance(end - at_);
  }

  void operation(std::string& open) {
    static constexpr std::array<std::string_view, 6> kTwo = {"==", "!=", ">=", "<=", "**", "//"};
    for (const auto two : kTwo) {
      if (!ahead(two)) continue;
      add(Token::Kind::kOperator, std::string(two));
      return advance(2);
    }
    const char c = peek();
    if (std::string_view("+-*/%~[](){}<>=.:|,").find(c) == std::string_view::npos) {
      const size_t size = character_size(text_, at_);
      fail(fmt::format("'{}' means nothing here", text_.substr(at_, size)));
    }
    if (std::string_view("([{").find(c) != std::string_view::npos) open += c;
    if (std::string_view(")]}").find(c) != std::string_view::npos) {
      const char match = c == ')' ? '(' : c == ']' ? '[' : '{';
      if (open.empty() || open.back() != match) fail(fmt::format("'{}' closes nothing", c));
      open.pop_back();
    }
    add(Token::Kind::kOperator, std::string(1, c));
    advance(1);
  }

  const std::string& name_;
  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_start_ = true;  // nothing of this line has gone before
  std::vector<Token> out_;
};

}  // namespace

int base_of(std::string_view number) {
  if (number.size() < 3 || number[0] != '0') return 0;
  switch (number[1]) {
    case 'x':
    case 'X': return 16;
    case 'o':
    case 'O': return 8;
    case 'b':
    case 'B': return 2;
    default: return 0;
  }
}

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  if (source.size() > kMaxTemplate) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("chat template '{}' has {} bytes; the limit is {}", name, source.size(),
                            kMaxTemplate));
  }
  if (!is_utf8(source)) {
    throw Error(ErrorCode::kCorrupt, fmt::format("chat template '{}' is not UTF-8", name));
  }
  const std::string text = normal_lines(source);
  return Lexer(text, name).run();
}

void fail_at(ErrorCode code, const std::string& name, int line, const std::string& what) {
  throw Error(code, fmt::format("chat template '{}', line {}: {}", name, line, what));
}

}  // namespace pith::chat
