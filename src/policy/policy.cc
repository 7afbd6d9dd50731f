// The policy grammar: text to rules and back (include/pith/policy.h has the grammar). Methods,
// parameters and values are checked against the registry.

#include "pith/policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>

#include "pith/error.h"
#include "policy/registry.h"

namespace pith {
namespace {

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, "policy: " + message);
}

std::string_view trim(std::string_view s) {
  const size_t a = s.find_first_not_of(" \t\n");
  if (a == std::string_view::npos) return {};
  return s.substr(a, s.find_last_not_of(" \t\n") - a + 1);
}

/// Splits at `separator` outside parentheses, which may lie in others once: a codec's parameter may
/// be a codec (ladder).
std::vector<std::string_view> split(std::string_view s, char separator) {
  std::vector<std::string_view> out;
  int depth = 0;
  size_t start = 0;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] == '(') ++depth;
    if (s[i] == ')') --depth;
    if (depth < 0 || depth > 2) fail(fmt::format("parentheses do not match in '{}'", s));
    if (s[i] == separator && depth == 0) {
      out.push_back(trim(s.substr(start, i - start)));
      start = i + 1;
    }
  }
  if (depth != 0) fail(fmt::format("parentheses do not match in '{}'", s));
  out.push_back(trim(s.substr(start)));
  return out;
}

std::pair<std::string, std::string> key_value(std::string_view s) {
  const size_t eq = s.find('=');
  if (eq == std::string_view::npos || eq == 0 || eq + 1 == s.size())
    fail(fmt::format("'{}' is not name=value", s));
  return {std::string(trim(s.substr(0, eq))), std::string(trim(s.substr(eq + 1)))};
}

PolicyPart parse_part(std::string_view s) {
  PolicyPart part;
  const size_t open = s.find('(');
  part.name = trim(s.substr(0, open));
  if (part.name.empty()) fail(fmt::format("a method's name is missing in '{}'", s));
  if (open == std::string_view::npos) return part;
  if (s.back() != ')') fail(fmt::format("'{}' goes on after its ')'", s));
  const std::string_view inside = trim(s.substr(open + 1, s.size() - open - 2));
  if (inside.empty()) return part;
  for (std::string_view p : split(inside, ',')) {
    auto [key, value] = key_value(p);
    if (!part.parameters.emplace(key, value).second)
      fail(fmt::format("'{}' is given twice in '{}'", key, s));
  }
  return part;
}

int parse_int(std::string_view s, std::string_view whole) {
  int value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (error != std::errc() || end != s.data() + s.size())
    fail(fmt::format("'{}' in '{}' is not a layer or head number", s, whole));
  return value;
}

std::vector<IndexRange> parse_ranges(std::string_view s) {
  std::vector<IndexRange> ranges;
  for (std::string_view r : split(s, ',')) {
    const size_t dash = r.find('-', 1);
    IndexRange range;
    range.first = parse_int(r.substr(0, dash), s);
    range.last = dash == std::string_view::npos ? range.first : parse_int(r.substr(dash + 1), s);
    ranges.push_back(range);
  }
  return ranges;
}

void parse_where(std::string_view s, PolicyRule& rule) {
  for (std::string_view w : split(s, '/')) {
    auto [key, value] = key_value(w);
    if (key == "layers" && rule.layers.empty())
      rule.layers = parse_ranges(value);
    else if (key == "heads" && rule.heads.empty())
      rule.heads = parse_ranges(value);
    else
      fail(fmt::format("'{}' names neither layers=... nor heads=...", s));
  }
}

uint32_t parse_rows(const std::string& key, const std::string& value) {
  uint32_t rows = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), rows);
  if (error != std::errc() || end != value.data() + value.size() || rows > (1u << 30))
    fail(fmt::format("{}={} is not a number of rows", key, value));
  return rows;
}

PromptReading parse_prompt(std::string_view value) {
  for (const PromptReading reading :
       {PromptReading::kChunks, PromptReading::kExact, PromptReading::kOnce})
    if (value == to_string(reading)) return reading;
  fail(fmt::format("prompt={}; a prompt is read in 'chunks', 'exact' or 'once'", value));
}

/// `prompt` is null in the rules that are for some layers or heads.
void parse_setting(std::string_view s, PolicyRule& rule, std::optional<PromptReading>* prompt) {
  auto [key, value] = key_value(s);
  if (key == "sink" && !rule.sink)
    rule.sink = parse_rows(key, value);
  else if (key == "window" && !rule.window)
    rule.window = parse_rows(key, value);
  else if (key == "dtype" && !rule.dtype)
    rule.dtype = parse_dtype(value);
  else if (key == "prompt" && !prompt)
    fail(
        fmt::format("'{}' in a rule for some layers or heads; all read a prompt alike: write it "
                    "in the first rule",
                    s));
  else if (key == "prompt" && !*prompt)
    *prompt = parse_prompt(value);
  else if (key == "sink" || key == "window" || key == "dtype" || key == "prompt")
    fail(fmt::format("'{}' is given twice", key));
  else
    fail(fmt::format("unknown setting '{}'; known: sink, window, dtype, prompt", key));
}

struct PartSides {
  bool keys = true, values = true;
};

void set_codec(PolicyRule& rule, const PolicyPart& part, PartSides sides) {
  const auto put = [&](std::optional<PolicyPart>& slot, const char* side) {
    if (slot) fail(fmt::format("{} have two codecs, '{}' and '{}'", side, slot->name, part.name));
    slot = part;
  };
  if (sides.keys) put(rule.key_codec, "keys");
  if (sides.values) put(rule.value_codec, "values");
}

/// One of the parts joined by '+': returns true if it was the selector.
bool add_part(PolicyRule& rule, std::string_view text) {
  PartSides sides;
  const bool one_side = text.starts_with("k:") || text.starts_with("v:");
  if (one_side) {
    (text[0] == 'k' ? sides.values : sides.keys) = false;
    text.remove_prefix(2);
  }
  const PolicyPart part = parse_part(trim(text));
  if (const SelectorRow* row = find_selector(part.name)) {
    if (one_side) fail(fmt::format("'{}' selects rows; k: and v: go before codecs", part.name));
    row->read(part);
    rule.selector = part;
    return true;
  }
  // Unknown names end here, with a suggestion.
  codec_row(part.name).read(part);
  set_codec(rule, part, sides);
  return false;
}

PolicyRule parse_rule(std::string_view s, std::optional<PromptReading>* prompt) {
  const bool is_default = prompt != nullptr;
  PolicyRule rule;
  std::string_view body = s;
  if (s.starts_with("layers=") || s.starts_with("heads=")) {
    if (is_default) fail("the first rule is the default and names no layers or heads");
    const size_t colon = s.find(':');
    if (colon == std::string_view::npos) fail(fmt::format("a ':' is missing in '{}'", s));
    parse_where(trim(s.substr(0, colon)), rule);
    body = trim(s.substr(colon + 1));
  } else if (!is_default) {
    fail(fmt::format("'{}' must say which layers or heads it is for: layers=0-1:exact", s));
  }
  const auto pieces = split(body, ',');
  bool selected = false;
  for (std::string_view part : split(pieces[0], '+')) {
    if (part.empty()) fail(fmt::format("an empty part in '{}'", body));
    if (add_part(rule, part)) {
      if (selected) fail(fmt::format("two selectors in '{}'; one chooses the rows", body));
      selected = true;
    }
  }
  for (size_t i = 1; i < pieces.size(); ++i) parse_setting(pieces[i], rule, prompt);
  return rule;
}

std::string write_ranges(const std::vector<IndexRange>& ranges) {
  std::vector<std::string> out;
  for (const IndexRange& r : ranges)
    out.push_back(r.first == r.last ? std::to_string(r.first)
                                    : fmt::format("{}-{}", r.first, r.last));
  return fmt::format("{}", fmt::join(out, ","));
}

std::string write_rule(const PolicyRule& rule) {
  std::string s;
  if (!rule.layers.empty()) s += "layers=" + write_ranges(rule.layers);
  if (!rule.heads.empty()) s += (s.empty() ? "" : "/") + ("heads=" + write_ranges(rule.heads));
  if (!s.empty()) s += ":";
  s += to_string(rule.selector);
  const bool same = rule.key_codec && rule.value_codec &&
                    to_string(*rule.key_codec) == to_string(*rule.value_codec);
  if (same) s += "+" + to_string(*rule.key_codec);
  if (!same && rule.key_codec) s += "+k:" + to_string(*rule.key_codec);
  if (!same && rule.value_codec) s += "+v:" + to_string(*rule.value_codec);
  if (rule.sink) s += fmt::format(",sink={}", *rule.sink);
  if (rule.window) s += fmt::format(",window={}", *rule.window);
  if (rule.dtype) s += fmt::format(",dtype={}", to_string(*rule.dtype));
  return s;
}

bool contains(const std::vector<IndexRange>& ranges, int index, int size) {
  if (ranges.empty()) return true;
  for (const IndexRange& r : ranges) {
    const int first = r.first < 0 ? r.first + size : r.first;
    const int last = r.last < 0 ? r.last + size : r.last;
    if (first <= index && index <= last) return true;
  }
  return false;
}

}  // namespace

const char* to_string(PromptReading reading) {
  switch (reading) {
    case PromptReading::kChunks: return "chunks";
    case PromptReading::kExact: return "exact";
    default: return "once";
  }
}

std::string prompt_setting(PromptReading reading) {
  if (reading == PromptReading::kChunks) return "";
  return fmt::format(",prompt={}", to_string(reading));
}

PolicyPart parse_codec(std::string_view text) {
  PolicyPart part = parse_part(trim(text));
  if (find_selector(part.name))
    fail(fmt::format("'{}' selects rows; a codec goes there", part.name));
  codec_row(part.name).read(part);
  return part;
}

Policy Policy::parse(std::string_view text) {
  if (trim(text).empty()) fail("it is empty; 'exact' keeps everything");
  Policy policy;
  std::optional<PromptReading> prompt;
  for (std::string_view rule : split(text, ';'))
    policy.rules.push_back(parse_rule(rule, policy.rules.empty() ? &prompt : nullptr));
  policy.prompt = prompt.value_or(PromptReading::kChunks);
  return policy;
}

void Policy::set_budget(const std::string& budget) {
  Budget::parse(budget);
  for (PolicyRule& rule : rules) {
    const MethodInfo& method = selector_row(rule.selector.name).info;
    if (method.size_parameter.empty())
      fail(
          fmt::format("a budget of {} was asked, but '{}' keeps every row; choose a selector such "
                      "as streaming_llm or uniform",
                      budget, method.name));
    if (!rule.selector.parameters.emplace(method.size_parameter, budget).second)
      fail(fmt::format("a budget of {} was asked, but '{}' has {} already", budget,
                       pith::to_string(rule.selector), method.size_parameter));
    selector_row(method.name).read(rule.selector);
  }
}

std::string Policy::to_string() const {
  std::vector<std::string> out;
  for (const PolicyRule& rule : rules) out.push_back(write_rule(rule));
  if (!out.empty()) out[0] += prompt_setting(prompt);
  return fmt::format("{}", fmt::join(out, ";"));
}

const PolicyRule& Policy::rule_for(int layer, int layers, int head, int heads) const {
  for (size_t i = rules.size(); i-- > 1;)
    if (contains(rules[i].layers, layer, layers) && contains(rules[i].heads, head, heads))
      return rules[i];
  return rules[0];
}

}  // namespace pith
