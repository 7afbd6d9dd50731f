#include "policy/refusal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pith/error.h"
#include "policy/support.h"

namespace pith {
namespace {

std::string text_of(PolicyRule rule, PromptReading prompt) {
  rule.layers.clear();
  rule.heads.clear();
  Policy policy;
  policy.prompt = prompt;
  policy.rules.push_back(std::move(rule));
  return policy.to_string();
}

bool works(const PolicyRule& rule, const RulePlace& place, bool protect) {
  try {
    return compare(place_rule(rule, place).asked(protect)).empty();
  } catch (const Error&) {
    return false;  // its parameters contradict each other or do not fit this model
  }
}

/// With one parameter, or one setting, left out, but for the selector's size.
std::vector<PolicyRule> with_less(const PolicyRule& rule) {
  std::vector<PolicyRule> less;
  const auto without = [&](const PolicyPart& part, auto&& of) {
    for (const auto& [name, value] : part.parameters) {
      less.push_back(rule);
      of(less.back()).parameters.erase(name);
    }
  };
  if (rule.key_codec && rule.value_codec &&
      to_string(*rule.key_codec) == to_string(*rule.value_codec))
    for (const auto& [name, value] : rule.key_codec->parameters) {
      less.push_back(rule);
      less.back().key_codec->parameters.erase(name);
      less.back().value_codec->parameters.erase(name);
    }
  if (rule.key_codec)
    without(*rule.key_codec, [](PolicyRule& r) -> PolicyPart& { return *r.key_codec; });
  if (rule.value_codec)
    without(*rule.value_codec, [](PolicyRule& r) -> PolicyPart& { return *r.value_codec; });
  PolicyPart extras = rule.selector;
  extras.parameters.erase(selector_row(extras.name).info.size_parameter);
  without(extras, [](PolicyRule& r) -> PolicyPart& { return r.selector; });
  // Some have heavy rows unless told otherwise.
  const auto& known = selector_row(extras.name).info.parameters;
  if (std::ranges::find(known, "heavy", &ParameterInfo::name) != known.end()) {
    less.push_back(rule);
    less.back().selector.parameters["heavy"] = "0";
  }
  if (rule.dtype) {
    less.push_back(rule);
    less.back().dtype.reset();
  }
  return less;
}

/// With one codec for both sides: its own first, then all others by what a row costs.
std::vector<PolicyRule> with_codecs(const PolicyRule& rule, const RulePlace& place) {
  std::vector<PolicyPart> parts;
  for (const auto& own : {rule.key_codec, rule.value_codec})
    if (own) parts.push_back(*own);
  const auto dim = static_cast<size_t>(place.shape.head_dim);
  const auto bytes = [&](const PolicyPart& part) {
    const CodecRow& row = codec_row(part.name);
    return row.make(row.read(part), Side::kKeys)->bytes_per_row(dim);
  };
  const double asked = parts.empty() ? static_cast<double>(2 * dim) : bytes(parts.front());
  std::vector<PolicyPart> others;
  for (const CodecRow& row : codec_rows()) others.push_back({row.info.name, {}});
  std::ranges::stable_sort(
      others, {}, [&](const PolicyPart& part) { return std::fabs(std::log(bytes(part) / asked)); });
  parts.insert(parts.end(), others.begin(), others.end());
  std::vector<PolicyRule> rules;
  for (const PolicyPart& part : parts) {
    rules.push_back(rule);
    rules.back().key_codec = rules.back().value_codec = part;
  }
  return rules;
}

/// With another selector of the same size.
std::vector<PolicyRule> with_selectors(const PolicyRule& rule) {
  const auto size_of_selector = [](const PolicyPart& selector) -> std::string {
    const auto size = selector.parameters.find(selector_row(selector.name).info.size_parameter);
    return size == selector.parameters.end() ? "" : size->second;
  };
  std::vector<PolicyRule> rules;
  for (const SelectorRow& row : selector_rows()) {
    if (row.info.size_parameter.empty() || row.owns_window) continue;
    rules.push_back(rule);
    PolicyPart& selector = rules.back().selector;
    const std::string size = size_of_selector(selector);
    selector = {row.info.name, {}};
    if (!size.empty()) selector.parameters[row.info.size_parameter] = size;
  }
  rules.push_back(rule);
  rules.back().selector = {"exact", {}};
  return rules;
}

/// The reading of prompts that is nearest to `asked`.
PromptReading known_on(Device device, PromptReading asked) {
  const bool gathers = asked == PromptReading::kOnce;
  return gathers && !DeviceOffers::of(device).gathers ? PromptReading::kExact : asked;
}

}  // namespace

std::optional<PolicyRule> nearest(const PolicyRule& rule, const RulePlace& place, bool protect) {
  RulePlace there = place;
  there.prompt = known_on(place.device, place.prompt);
  if (there.prompt != place.prompt && works(rule, there, protect)) return rule;
  for (const auto& candidates : {with_less(rule), with_codecs(rule, there), with_selectors(rule)})
    for (const PolicyRule& candidate : candidates)
      if (works(candidate, there, protect)) return candidate;
  PolicyRule plain;
  if (works(plain, there, protect)) return plain;
  return std::nullopt;
}

void refuse(const PolicyRule& rule, const RulePlace& place, const Asked& asked,
            const std::vector<Difference>& differences) {
  std::string why;
  for (const Difference& d : differences)
    why += fmt::format("{}{} is not there; {}", why.empty() ? "" : "; ", d.asked, d.there);
  const std::string codecs = asked.keys.codec == asked.values.codec
                                 ? asked.keys.text()
                                 : "k:" + asked.keys.text() + "; v:" + asked.values.text();
  const auto other = nearest(rule, place, asked.protect);
  std::string instead;
  if (other)
    instead = fmt::format(" The nearest that works is '{}'",
                          text_of(*other, known_on(place.device, place.prompt)));
  if (place.device != Device::kCpu)
    instead += other ? "; or use --device cpu" : " Use --device cpu";
  throw Error(ErrorCode::kUnsupported,
              fmt::format("'{}' is not on {} yet: {}. {} needs: {}. {}.{}",
                          text_of(rule, place.prompt), DeviceOffers::of(asked.device).name, why,
                          asked.selector, asked.needs.text(), codecs, instead));
}

void refuse_types() {
  throw Error(ErrorCode::kUnsupported,
              "a cache with f16 and bf16 rows is not on the GPU yet; all layers and heads have one "
              "type there (dtype=bf16 sets it); use --device cpu");
}

}  // namespace pith
