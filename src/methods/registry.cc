// The registry: one row a method. A new method adds its row here, its folder beside this file and
// its page in docs/methods; the contract suite picks it up by itself. Its half on the GPU is a row
// of registry_cuda.cc.

#include "policy/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "methods/codecs/own/own.h"
#include "methods/methods.h"
#include "methods/own_names.h"
#include "methods/selectors/own/own.h"
#include "pith/error.h"
#include "pith/nearest.h"
#include "policy/support.h"

namespace pith {
namespace {

#define PITH_ROW(name) name##_row(),
const auto& selectors() {
  static const auto kRows = std::to_array<SelectorRow>({PITH_SELECTORS(PITH_ROW)});
  return kRows;
}

const auto& codecs() {
  static const auto kRows =
      std::to_array<CodecRow>({dense_row(DType::kF32), dense_row(DType::kF16),
                               dense_row(DType::kBF16), PITH_CODECS(PITH_ROW)});
  return kRows;
}
#undef PITH_ROW

// Names as papers and other tools write them: SnapKV, streaming-llm.
std::string folded(std::string_view name) {
  std::string out;
  for (const char c : name)
    if (c != '_' && c != '-') out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return out;
}

[[noreturn]] void unknown(std::string_view name) {
  std::vector<std::string> selector_names, codec_names, all, comparable;
  for (const SelectorRow& r : selectors()) selector_names.push_back(r.info.name);
  for (const SelectorRow* r : added_selectors()) selector_names.push_back(r->info.name);
  for (const CodecRow& r : codecs()) codec_names.push_back(r.info.name);
  for (const CodecRow* r : added_codecs()) codec_names.push_back(r->info.name);
  for (const auto* names : {&selector_names, &codec_names})
    for (const std::string& n : *names) all.push_back(n), comparable.push_back(folded(n));
  for (const char* word : kSizeWords) all.emplace_back(word), comparable.emplace_back(word);
  const auto nearest = nearest_name(folded(name), comparable);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("policy: unknown method '{}'{}; selectors: {}; codecs: {}", name,
                          nearest ? fmt::format(" (did you mean '{}'?)", all[*nearest]) : "",
                          fmt::join(selector_names, ", "), fmt::join(codec_names, ", ")));
}

/// As its rule resolves over plain rows in a place like any other.
void add_needs(MethodInfo& info) {
  const CacheShape shape{1, 1, 1, 64, {}, 4000};
  const SelectorRow& row = selector_row(info.name);
  const CohortPolicy placed =
      place_rule(pair_rule(row, codec_row("f16"), 1000), {shape, 0, {0}, 0, Device::kCpu});
  const Needs& needs = placed.selector.needs;
  info.needs_mass = needs.mass;
  info.needs_queries = needs.queries || needs.mass;
  info.needs_rope = needs.rope || needs.cache_positions;
  info.weighted = needs.weighs || needs.row_weights || needs.halves > 0 || needs.roles;
  info.ragged = needs.shared || needs.body == Needs::Body::kDrawn;
  info.needs = needs.text();
}

/// With default parameters under `exact`; what its half on the GPU says of rows is true of both.
void add_offers(MethodInfo& info) {
  const CodecRow& row = codec_row(info.name);
  const CacheShape shape{1, 1, 1, 64, {}, 4000};
  const CohortPolicy placed =
      place_rule(pair_rule(selector_row("exact"), row, 1000), {shape, 0, {0}, 0, Device::kCpu});
  Offers offers = placed.keys.offers;
  offers.codec = info.name;
  if (row.on_gpu) {
    const Offers gpu = row.on_gpu(row.read({info.name, {}}), {Side::kKeys, 64});
    offers.shares = gpu.shares;
    offers.learns = gpu.learns;
    offers.aged = gpu.aged;
  }
  if (!offers.coded) offers.block = 1;
  info.block_rows = offers.block;
  info.learns_rows = offers.learns;
  info.shares = offers.shares;
  info.keys_before_rope = offers.before_rope;
  info.needs_rope = offers.before_rope;
  info.offers = offers.text();
}

}  // namespace

const SelectorRow* find_selector(std::string_view name) {
  for (const SelectorRow& r : selectors())
    if (r.info.name == name) return &r;
  return find_added_selector(name);
}

const CodecRow* find_codec(std::string_view name) {
  for (const CodecRow& r : codecs())
    if (r.info.name == name) return &r;
  return find_added_codec(name);
}

const SelectorRow& selector_row(std::string_view name) {
  if (const SelectorRow* r = find_selector(name)) return *r;
  unknown(name);
}

const CodecRow& codec_row(std::string_view name) {
  if (const CodecRow* r = find_codec(name)) return *r;
  unknown(name);
}

std::span<const SelectorRow> selector_rows() { return selectors(); }
std::span<const CodecRow> codec_rows() { return codecs(); }

size_t added_methods() { return added_selectors().size() + added_codecs().size(); }

std::vector<MethodInfo> methods() {
  std::vector<MethodInfo> all;
  for (const SelectorRow& r : selectors()) {
    all.push_back(r.info);
    all.back().on_gpu = r.on_gpu;
    add_needs(all.back());
  }
  for (const SelectorRow* r : added_selectors()) {
    all.push_back(r->info);
    add_needs(all.back());
  }
  for (const CodecRow& r : codecs()) {
    all.push_back(r.info);
    all.back().on_gpu = r.on_gpu || (r.dense && *r.dense != DType::kF32);
    add_offers(all.back());
  }
  for (const CodecRow* r : added_codecs()) {
    all.push_back(r->info);
    add_offers(all.back());
  }
  return all;
}

}  // namespace pith
