#include "model/tokenizers/tokenizer_regex.h"

#include <fmt/format.h>
#include <unicode/unistr.h>

#include <span>

#include "pith/error.h"

namespace pith {
namespace {

using Ranges = std::span<const std::pair<int, int>>;

// Characters that came after Unicode 15.0 (ICU 72), up to 16.0, the age of the tables in the
// tokenizers package 0.22 and 0.23, by property. Found by comparing both over every code point.
constexpr std::pair<int, int> kNewLetters[] = {
    {0x1C89, 0x1C8A},   {0xA7CB, 0xA7CD},   {0xA7DA, 0xA7DC},   {0x105C0, 0x105F3},
    {0x10D4A, 0x10D65}, {0x10D6F, 0x10D85}, {0x10EC2, 0x10EC4}, {0x11380, 0x11389},
    {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5}, {0x113B7, 0x113B7},
    {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0}, {0x13460, 0x143FA},
    {0x16100, 0x1611D}, {0x16D40, 0x16D6C}, {0x18CFF, 0x18CFF}, {0x1E5D0, 0x1E5ED},
    {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr std::pair<int, int> kNewUpper[] = {
    {0x1C89, 0x1C89}, {0xA7CB, 0xA7CC}, {0xA7DA, 0xA7DA}, {0xA7DC, 0xA7DC}, {0x10D50, 0x10D65}};
constexpr std::pair<int, int> kNewLower[] = {
    {0x1C8A, 0x1C8A}, {0xA7CD, 0xA7CD}, {0xA7DB, 0xA7DB}, {0x10D70, 0x10D85}};
constexpr std::pair<int, int> kNewModifiers[] = {
    {0x10D4E, 0x10D4E}, {0x10D6F, 0x10D6F}, {0x16D40, 0x16D42}, {0x16D6B, 0x16D6C}};
constexpr std::pair<int, int> kNewCaseless[] = {
    {0x105C0, 0x105F3}, {0x10D4A, 0x10D4D}, {0x10D4F, 0x10D4F}, {0x10EC2, 0x10EC4},
    {0x11380, 0x11389}, {0x1138B, 0x1138B}, {0x1138E, 0x1138E}, {0x11390, 0x113B5},
    {0x113B7, 0x113B7}, {0x113D1, 0x113D1}, {0x113D3, 0x113D3}, {0x11BC0, 0x11BE0},
    {0x13460, 0x143FA}, {0x16100, 0x1611D}, {0x16D43, 0x16D6A}, {0x18CFF, 0x18CFF},
    {0x1E5D0, 0x1E5ED}, {0x1E5F0, 0x1E5F0}, {0x2EBF0, 0x2EE5D}};
constexpr std::pair<int, int> kNewNumbers[] = {  // all of them decimal digits
    {0x10D40, 0x10D49}, {0x116D0, 0x116E3}, {0x11BF0, 0x11BF9}, {0x16130, 0x16139},
    {0x16D70, 0x16D79}, {0x1CCF0, 0x1CCF9}, {0x1E5F1, 0x1E5FA}};
constexpr std::pair<int, int> kNewMarks[] = {
    {0x897, 0x897},     {0x10D69, 0x10D6D}, {0x10EFC, 0x10EFC}, {0x113B8, 0x113C0},
    {0x113C2, 0x113C2}, {0x113C5, 0x113C5}, {0x113C7, 0x113CA}, {0x113CC, 0x113D0},
    {0x113D2, 0x113D2}, {0x113E1, 0x113E2}, {0x11F5A, 0x11F5A}, {0x1611E, 0x1612F},
    {0x1E5EE, 0x1E5EF}};
constexpr std::pair<int, int> kNewPunctuation[] = {
    {0x1B4E, 0x1B4F},   {0x1B7F, 0x1B7F},   {0x10D6E, 0x10D6E}, {0x113D4, 0x113D5},
    {0x113D7, 0x113D8}, {0x11BE1, 0x11BE1}, {0x16D6D, 0x16D6F}, {0x1E5FF, 0x1E5FF}};
constexpr std::pair<int, int> kNewSymbols[] = {
    {0x2427, 0x2429},   {0x2FFC, 0x2FFF},   {0x31E4, 0x31E5},   {0x31EF, 0x31EF},
    {0x10D8E, 0x10D8F}, {0x1CC00, 0x1CCEF}, {0x1CD00, 0x1CEB3}, {0x1F8B2, 0x1F8BB},
    {0x1F8C0, 0x1F8C1}, {0x1FA89, 0x1FA89}, {0x1FA8F, 0x1FA8F}, {0x1FABE, 0x1FABE},
    {0x1FAC6, 0x1FAC6}, {0x1FADC, 0x1FADC}, {0x1FADF, 0x1FADF}, {0x1FAE9, 0x1FAE9},
    {0x1FBCB, 0x1FBEF}};

struct Property {
  std::string_view name;
  Ranges extra;
};
constexpr Property kProperties[] = {
    {"L", kNewLetters},     {"Lu", kNewUpper},  {"Ll", kNewLower},   {"Lm", kNewModifiers},
    {"Lo", kNewCaseless},   {"N", kNewNumbers}, {"Nd", kNewNumbers}, {"M", kNewMarks},
    {"P", kNewPunctuation}, {"S", kNewSymbols}};

/// The set of a property, brought up to Unicode 16 where its new members are known.
std::string set_of(bool inverted, std::string_view property) {
  Ranges extra;
  for (const Property& known : kProperties) {
    if (known.name == property) extra = known.extra;
  }
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
    out_ += set_of(inverted, name);
  }

  void escape() {
    if (rest_.size() < 2) refuse(pattern_, "a \\ at its end");
    const char c = rest_[1];
    const std::string_view both = rest_.substr(0, 2);
    rest_.remove_prefix(2);
    switch (c) {
      case 's': out_ += "\\p{White_Space}"; return;
      case 'S': out_ += "\\P{White_Space}"; return;
      case 'd': out_ += set_of(false, "Nd"); return;
      case 'D': out_ += set_of(true, "Nd"); return;
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

std::unique_ptr<icu::RegexPattern> compile_regex(std::string_view pattern) {
  const std::string translated = to_icu_regex(pattern);
  UErrorCode status = U_ZERO_ERROR;
  std::unique_ptr<icu::RegexPattern> compiled(
      icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(translated), 0, status));
  if (U_FAILURE(status)) refuse(pattern, fmt::format("what ICU refuses ({})", u_errorName(status)));
  return compiled;
}

}  // namespace pith
