#include "model/tokenizers/tokenizer_split.h"

#include <fmt/format.h>
#include <unicode/normalizer2.h>

#include <algorithm>

#include "core/utf8.h"
#include "model/tokenizers/tokenizer_regex.h"
#include "pith/error.h"

namespace pith {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 16;  // of Sequences; real files have 2

[[noreturn]] void refuse(std::string_view what, std::string_view name, std::string_view known) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{} \"{}\" is not supported; supported: {}", what, name, known));
}

void check(UErrorCode status, const char* what) {
  if (U_SUCCESS(status)) return;
  const bool memory = status == U_MEMORY_ALLOCATION_ERROR || status == U_REGEX_STACK_OVERFLOW;
  throw Error(memory ? ErrorCode::kOutOfMemory : ErrorCode::kInternal,
              fmt::format("{} failed in ICU: {}", what, u_errorName(status)));
}

/// Calls `each` for every member of a Sequence named by `list`.
template <typename Each>
void for_each_member(const json& spec, const char* list, int depth, const Each& each) {
  if (depth >= kMaxDepth) refuse("nesting of", "Sequence", fmt::format("{} levels", kMaxDepth));
  for (const json& member : spec.at(list)) each(member);
}

std::unique_ptr<icu::RegexPattern> compile_literal(const icu::UnicodeString& text) {
  if (text.isEmpty()) refuse("Split's pattern", "", "a String that is not empty");
  UErrorCode status = U_ZERO_ERROR;
  std::unique_ptr<icu::RegexPattern> pattern(
      icu::RegexPattern::compile(text, UREGEX_LITERAL, status));
  check(status, "compiling a fixed string");
  return pattern;
}

/// The library's tables for NFC are those of Unicode 9: later characters pass as they are.
std::shared_ptr<const icu::UnicodeSet> nfc_characters() {
  UErrorCode status = U_ZERO_ERROR;
  const auto set =
      std::make_shared<icu::UnicodeSet>(icu::UnicodeString::fromUTF8("[:Age=9.0:]"), status);
  check(status, "loading the Unicode tables");
  set->freeze();
  return set;
}

std::string nfc(std::string_view text, const icu::UnicodeSet& characters) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; })) {
    return std::string(text);
  }
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* full = icu::Normalizer2::getNFCInstance(status);
  check(status, "loading the NFC tables");
  const icu::FilteredNormalizer2 filtered(*full, characters);
  const auto utf16 = icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
  icu::UnicodeString composed;
  filtered.normalize(utf16, composed, status);
  check(status, "NFC normalization");
  std::string out;
  return composed.toUTF8String(out);
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = text.find(from, at)) != text.npos; at = hit + from.size()) {
    out.append(text, at, hit - at);
    out += to;
  }
  return out.append(text, at);
}

}  // namespace

Normalizer::Normalizer(const json& spec) {
  if (!spec.is_null()) add(spec, 0);
}

void Normalizer::add(const json& spec, int depth) {
  const std::string type = spec.at("type").get<std::string>();
  if (type == "Sequence") {
    for_each_member(spec, "normalizers", depth, [&](const json& m) { add(m, depth + 1); });
  } else if (type == "NFC") {
    steps_.push_back({Kind::kNfc, "", ""});
    nfc_characters_ = nfc_characters();
  } else if (type == "Prepend") {
    steps_.push_back({Kind::kPrepend, "", spec.at("prepend").get<std::string>()});
  } else if (type == "Replace" && spec.at("pattern").contains("String") &&
             !spec.at("pattern").at("String").get<std::string>().empty()) {
    steps_.push_back({Kind::kReplace, spec.at("pattern").at("String").get<std::string>(),
                      spec.at("content").get<std::string>()});
  } else {
    refuse("the normalizer", type, "null, NFC, Prepend, Replace of a String, Sequence");
  }
}

std::string Normalizer::apply(std::string text) const {
  for (const Step& step : steps_) {
    if (text.empty()) break;
    switch (step.kind) {
      case Kind::kNfc: text = nfc(text, *nfc_characters_); break;
      case Kind::kPrepend: text.insert(0, step.to); break;
      case Kind::kReplace: text = replace_all(text, step.from, step.to); break;
    }
  }
  return text;
}

bool Normalizer::prepends() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const Step& s) { return s.kind == Kind::kPrepend; });
}

/// The text on its way: UTF-16, and the ranges that are words so far.
struct PreTokenizer::Text {
  icu::UnicodeString utf16;
  std::vector<Range> ranges;
};

PreTokenizer::PreTokenizer(const json& spec) {
  if (!spec.is_null()) add(spec, 0);
}

PreTokenizer::PreTokenizer(const SplitRules& rules) : byte_level_(true) {
  for (const std::string_view pattern : rules.patterns) {
    Step step;
    step.pattern = compile_regex(pattern);
    steps_.push_back(std::move(step));
  }
}

void PreTokenizer::add(const json& spec, int depth) {
  const std::string type = spec.at("type").get<std::string>();
  if (type == "Sequence") {
    return for_each_member(spec, "pretokenizers", depth,
                           [&](const json& member) { add(member, depth + 1); });
  }
  // ByteLevel turns bytes into letters of its own, which nothing after it is written for.
  if (byte_level_) refuse("a pre-tokenizer after ByteLevel,", type, "ByteLevel as the last one");
  if (type == "ByteLevel") return add_byte_level(spec);
  if (type == "Metaspace") return add_metaspace(spec);
  if (type == "Split") return add_split(spec);
  if (type == "Digits") {
    Step step;
    step.pattern = compile_regex(kDigitPattern);
    const bool single = spec.value("individual_digits", false);
    step.behavior = single ? Behavior::kIsolated : Behavior::kContiguous;
    steps_.push_back(std::move(step));
    return;
  }
  refuse("the pre-tokenizer", type, "null, Split, ByteLevel, Digits, Metaspace, Sequence");
}

void PreTokenizer::add_byte_level(const json& spec) {
  byte_level_ = true;
  Step step;
  if (spec.value("add_prefix_space", true)) {
    step.prefix = Prefix::kAlways;
    step.prefix_text = icu::UnicodeString(u' ');
  }
  if (spec.value("use_regex", true)) step.pattern = compile_regex(kGpt2Pattern);
  steps_.push_back(std::move(step));
}

void PreTokenizer::add_metaspace(const json& spec) {
  Step step;
  step.replace_spaces = true;
  step.prefix_text = icu::UnicodeString::fromUTF8(spec.at("replacement").get<std::string>());
  if (step.prefix_text.length() != 1) {
    refuse("Metaspace's replacement", spec.at("replacement").get<std::string>(),
           "one character below U+10000");
  }
  // Files from before prepend_scheme say add_prefix_space instead.
  const char* fallback = spec.value("add_prefix_space", true) ? "always" : "never";
  const std::string scheme = spec.value("prepend_scheme", std::string(fallback));
  if (scheme == "always") {
    step.prefix = Prefix::kAlways;
  } else if (scheme == "first") {
    step.prefix = Prefix::kFirst;
  } else if (scheme != "never") {
    refuse("Metaspace's prepend_scheme", scheme, "always, first, never");
  }
  prepends_ = prepends_ || step.prefix != Prefix::kNever;
  if (spec.value("split", true)) {
    step.pattern = compile_literal(step.prefix_text);
    step.behavior = Behavior::kMergedWithNext;
  }
  steps_.push_back(std::move(step));
}

void PreTokenizer::add_split(const json& spec) {
  Step step;
  const json& pattern = spec.at("pattern");
  if (pattern.contains("Regex")) {
    step.pattern = compile_regex(pattern.at("Regex").get<std::string>());
  } else {
    step.pattern =
        compile_literal(icu::UnicodeString::fromUTF8(pattern.at("String").get<std::string>()));
  }
  constexpr std::pair<std::string_view, Behavior> kNames[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  const std::string name = spec.at("behavior").get<std::string>();
  const auto* found = std::find_if(std::begin(kNames), std::end(kNames),
                                   [&](const auto& known) { return known.first == name; });
  if (found == std::end(kNames)) {
    refuse("Split's behavior", name,
           "Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
  }
  step.behavior = found->second;
  step.invert = spec.value("invert", false);
  steps_.push_back(std::move(step));
}

void PreTokenizer::prefix_ranges(const Step& step, bool first, Text& text) {
  if (step.replace_spaces) {
    text.utf16.findAndReplace(icu::UnicodeString(u' '), step.prefix_text);
  }
  icu::UnicodeString joined;
  for (Range& range : text.ranges) {
    const int32_t length = range.end - range.begin;
    const bool has = text.utf16.compare(range.begin, step.prefix_text.length(), step.prefix_text, 0,
                                        step.prefix_text.length()) == 0 &&
                     length >= step.prefix_text.length();
    const bool wants = step.prefix == Prefix::kAlways ||
                       (step.prefix == Prefix::kFirst && first && range.begin == 0);
    const int32_t begin = joined.length();
    if (wants && !has) joined.append(step.prefix_text);
    joined.append(text.utf16, range.begin, length);
    range = {begin, joined.length(), false};
  }
  text.utf16 = std::move(joined);
}

void PreTokenizer::merge(Behavior behavior, std::vector<Range>& ranges) {
  const auto join = [&](auto first, auto last, bool forward) {
    std::vector<Range> out;
    bool previous_match = false;
    for (auto it = first; it != last; ++it) {
      const bool joins = behavior == Behavior::kContiguous
                             ? !out.empty() && it->match == previous_match
                             : !out.empty() && it->match && !previous_match;
      previous_match = it->match;
      if (!joins) {
        out.push_back(*it);
      } else if (forward) {
        out.back().end = it->end;
      } else {
        out.back().begin = it->begin;
      }
    }
    return out;
  };
  if (behavior == Behavior::kRemoved) {
    std::erase_if(ranges, [](const Range& r) { return r.match; });
  } else if (behavior == Behavior::kMergedWithNext) {
    ranges = join(ranges.rbegin(), ranges.rend(), false);
    std::reverse(ranges.begin(), ranges.end());
  } else if (behavior != Behavior::kIsolated) {
    ranges = join(ranges.begin(), ranges.end(), true);
  }
}

void PreTokenizer::split_ranges(const Step& step, Text& text) {
  UErrorCode status = U_ZERO_ERROR;
  const std::unique_ptr<icu::RegexMatcher> matcher(step.pattern->matcher(text.utf16, status));
  check(status, "starting to split the text");
  std::vector<Range> all, parts;
  for (const Range& range : text.ranges) {
    parts.clear();
    matcher->region(range.begin, range.end, status);
    int32_t done = range.begin;
    while (matcher->find(status)) {
      const int32_t begin = matcher->start(status), end = matcher->end(status);
      if (done < begin) parts.push_back({done, begin, step.invert});
      if (begin < end) parts.push_back({begin, end, !step.invert});
      done = end;
    }
    check(status, "splitting the text");
    if (done < range.end) parts.push_back({done, range.end, step.invert});
    if (step.behavior != Behavior::kIsolated) merge(step.behavior, parts);
    all.insert(all.end(), parts.begin(), parts.end());
  }
  text.ranges = std::move(all);
}

void PreTokenizer::split(std::string_view text, bool first, Words& out) const {
  out.bytes.clear();
  out.ends.clear();
  if (steps_.empty()) {
    out.bytes = text;
    out.ends.push_back(text.size());
    return;
  }
  Text work;
  work.utf16 = icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
  if (work.utf16.isBogus()) check(U_MEMORY_ALLOCATION_ERROR, "copying the text");
  work.ranges.push_back({0, work.utf16.length(), false});
  for (const Step& step : steps_) {
    if (!step.prefix_text.isEmpty()) prefix_ranges(step, first, work);
    if (step.pattern != nullptr) split_ranges(step, work);
  }
  out.bytes.reserve(text.size());
  const char16_t* units = work.utf16.getBuffer();
  for (const Range& range : work.ranges) {
    for (int32_t at = range.begin; at < range.end;) {
      UChar32 c;
      U16_NEXT(units, at, range.end, c);
      append_utf8(out.bytes, static_cast<char32_t>(c));
    }
    out.ends.push_back(out.bytes.size());
  }
}

}  // namespace pith
