#include "policy/support.h"

namespace pith {
namespace {

constexpr size_t kRows = 1000;  // more than the tables of any codec are made of by default
constexpr int kContext = 4000, kWindow = 128;

}  // namespace

PolicyRule pair_rule(const SelectorRow& selector, const CodecRow& codec, size_t rows) {
  PolicyRule rule;
  rule.selector.name = selector.info.name;
  if (!selector.info.size_parameter.empty())
    rule.selector.parameters[selector.info.size_parameter] = std::to_string(rows);
  rule.key_codec = rule.value_codec = PolicyPart{codec.info.name, {}};
  return rule;
}

std::vector<Difference> why_not(const SelectorRow& selector, const CodecRow& codec, Device device,
                                int head_dim, Feature feature) {
  CacheShape shape{1, 1, 1, head_dim, {}, kContext};
  if (feature == Feature::kSliding) shape.sliding_window = {kWindow + 1};
  PolicyRule rule = pair_rule(selector, codec, kRows);
  if (feature == Feature::kSliding && !selector.owns_window) rule.window = kWindow / 2;
  return compare(place_rule(rule, {shape, 0, {0}, 0, device}).asked(feature == Feature::kProtect));
}

std::vector<Partner> partners(const std::string& method, Device device, int head_dim) {
  std::vector<Partner> all;
  if (const SelectorRow* selector = find_selector(method))
    for (const CodecRow& codec : codec_rows())
      all.push_back({codec.info.name, why_not(*selector, codec, device, head_dim)});
  if (const CodecRow* codec = find_codec(method))
    for (const SelectorRow& selector : selector_rows())
      all.push_back({selector.info.name, why_not(selector, *codec, device, head_dim)});
  return all;
}

std::vector<Limit> limits_on_gpu(const std::string& codec) {
  const CodecRow* row = find_codec(codec);
  if (!row || !row->on_gpu) return {};
  return row->on_gpu(row->read({codec, {}}), {Side::kKeys, 64}).limits;
}

}  // namespace pith
