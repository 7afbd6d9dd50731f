#include "model/tokenizer_regex.h"

#include <fmt/format.h>
#include <unicode/unistr.h>

#include <span>

#include "pith/error.h"

namespace pith {
namespace {

// Letters and numbers that came after Unicode 15.0 (ICU 72), up to 16.0, the age of the tables in
// the tokenizers package 0.22. Found by comparing both over every code point.
constexpr std::pair<int, int> kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr std::pair<int, int> kNewNumbers[] = {
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x16130, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA}};

std::string set_of(bool inverted, std::string_view property,
                   std::span<const std::pair<int, int>> extra) {
  std::string set = fmt::format("[{}\\p{{{}}}", inverted ? "^" : "", property);
  for (const auto& [low, high] : extra) set += fmt::format("\\x{{{:X}}}-\\x{{{:X}}}", low, high);
  return set + "]";
}

[[noreturn]] void refuse(std::string_view pattern, std::string_view what) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("the tokenizer's regular expression \"{}\" uses {}; supported: literals, "
                  "classes [...], \\s \\S \\d \\D \\r \\n \\t \\p{{...}} \\P{{...}}, groups "
                  "(?: (?i: (?= (?! (?<= (?<! (?>, and quantifiers",
                  pattern, what));
}

/// Walks over a pattern once; takes() eats what stands at the front.
class Translator {
 public:
  explicit Translator(std::string_view pattern) : pattern_(pattern), rest_(pattern) {}

  std::string run() {
    while (!rest_.empty()) {
      if (rest_[0] == '\\') {
        escape();
      } else if (depth_ > 0) {
        in_class();
      } else {
        outside();
      }
    }
    return out_;
  }

 private:
  bool takes(std::string_view text) {
    if (!rest_.starts_with(text)) return false;
    rest_.remove_prefix(text.size());
    return true;
  }

  void copy(size_t n) {
    out_ += rest_.substr(0, n);
    rest_.remove_prefix(n);
  }

  void property(bool inverted) {
    const size_t close = rest_.find('}');
    if (!rest_.starts_with('{') || close == rest_.npos) refuse(pattern_, "\\p without {name}");
    const std::string_view name = rest_.substr(1, close - 1);
    rest_.remove_prefix(close + 1);
    if (name == "L") {
      out_ += set_of(inverted, name, kNewLetters);
    } else if (name == "N") {
      out_ += set_of(inverted, name, kNewNumbers);
    } else {
      out_ += set_of(inverted, name, {});
    }
  }

  void escape() {
    if (rest_.size() < 2) refuse(pattern_, "a \\ at its end");
    const char c = rest_[1];
    const std::string_view both = rest_.substr(0, 2);
    rest_.remove_prefix(2);
    switch (c) {
      case 's': out_ += "\\p{White_Space}"; return;
      case 'S': out_ += "\\P{White_Space}"; return;
      case 'd': out_ += "\\p{Nd}"; return;
      case 'D': out_ += "\\P{Nd}"; return;
      case 'p': return property(false);
      case 'P': return property(true);
      case 'r':
      case 'n':
      case 't': out_ += both; return;
      default: break;
    }
    const bool alphanumeric =
        ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
    if (alphanumeric || static_cast<uint8_t>(c) >= 0x80) refuse(pattern_, both);
    out_ += both;
  }

  void in_class() {
    for (const std::string_view bad : {"[:", "&&", "--"}) {
      if (rest_.starts_with(bad)) refuse(pattern_, fmt::format("{} in a class", bad));
    }
    if (rest_[0] == '[') return open_class();
    if (rest_[0] == ']') --depth_;
    copy(1);
  }

  void open_class() {
    ++depth_;
    copy(1);
    if (takes("^")) out_ += "^";
    if (rest_.starts_with(']')) refuse(pattern_, "an empty class");
  }

  void outside() {
    for (const std::string_view bad : {"^", "$", "}+"}) {
      if (rest_.starts_with(bad)) refuse(pattern_, bad);
    }
    if (rest_[0] == '[') return open_class();
    if (takes(".")) {
      out_ += "[^\\n]";
      return;
    }
    if (rest_.starts_with("(?")) {
      for (const std::string_view group : {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"}) {
        if (takes(group)) {
          out_ += group;
          return;
        }
      }
      refuse(pattern_, rest_.substr(0, 3));
    }
    copy(1);
  }

  std::string_view pattern_, rest_;
  std::string out_;
  int depth_ = 0;  // of nested classes
};

}  // namespace

std::string to_icu_regex(std::string_view pattern) { return Translator(pattern).run(); }

std::string number_set() { return set_of(false, "N", kNewNumbers); }

std::unique_ptr<icu::RegexPattern> compile_regex(std::string_view pattern) {
  const std::string translated = to_icu_regex(pattern);
  UErrorCode status = U_ZERO_ERROR;
  std::unique_ptr<icu::RegexPattern> compiled(
      icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(translated), 0, status));
  if (U_FAILURE(status)) refuse(pattern, fmt::format("what ICU refuses ({})", u_errorName(status)));
  return compiled;
}

}  // namespace pith
