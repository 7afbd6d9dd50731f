#include "policy/offers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

namespace pith {
namespace {

std::string joined(const std::vector<std::string>& words) {
  return fmt::format("{}", fmt::join(words, ", "));
}

const char* text_of(Needs::Body body) {
  switch (body) {
    case Needs::Body::kAll: return "all rows, in order";
    case Needs::Body::kNone: return "no row behind the window";
    case Needs::Body::kDrawn: return "rows drawn as they come, other numbers in each head";
    case Needs::Body::kHalved: return "rows that are coded when they are final";
    case Needs::Body::kSelected: return "rows that are selected again";
    default: return "rows that are selected again, many at once";
  }
}

}  // namespace

Limit Limit::of(const std::string& method, const std::string& parameter, size_t value, bool fits,
                std::string there) {
  return {parameter, std::move(there),
          fits ? "" : fmt::format("{}({}={})", method, parameter, value)};
}

Limit Limit::of_group(const std::string& method, const std::string& parameter, size_t rows,
                      bool none, size_t dim) {
  const size_t most = dim > 128 ? 128 : 256;  // 128 KiB of f32 while they are coded
  const bool fits = rows == 0 ? none : rows % 32 == 0 && std::has_single_bit(rows) && rows <= most;
  return of(
      method, parameter, rows, fits,
      std::string(none ? "0, " : "") + (most == 128 ? "32, 64 or 128" : "32, 64, 128 or 256"));
}

std::string Needs::text() const {
  std::vector<std::string> words{text_of(body)};
  if (halves > 0) words.push_back(fmt::format("halvings of {} rows", halves));
  if (gathered) words.emplace_back("whole prompts");
  if (evicts > 0) words.push_back(fmt::format("heavy rows, of which {} leave together", evicts));
  if (mass) words.emplace_back("attention mass");
  if (queries) words.emplace_back("statistics of queries");
  if (row_weights) words.emplace_back("a weight for each row");
  if (roles) words.emplace_back("rows of one sum alone");
  if (shared) words.emplace_back("budgets that heads share");
  if (cache_positions) words.emplace_back("positions inside the cache");
  return joined(words);
}

std::string Offers::text() const {
  if (!coded) return codec + ": plain rows";
  std::vector<std::string> words{fmt::format("{} rows at a time", block)};
  words.emplace_back(aged     ? "which stay in order"
                     : shares ? "which share something"
                              : "which move alone");
  if (before_rope) words.emplace_back("keys before RoPE");
  if (learns > 0) words.push_back(fmt::format("tables of the first {} rows", learns));
  return codec + ": " + joined(words);
}

const DeviceOffers& DeviceOffers::of(Device device) {
  static const DeviceOffers kCpu{.name = "the CPU",
                                 .dims = {},
                                 .any_type = true,
                                 .roles = true,
                                 .shares = true,
                                 .selects_sliding = true,
                                 .positions = true,
                                 .turns_protected = true,
                                 .gathers = true,
                                 .halves = 0};
  static const DeviceOffers kGpu{.name = "the GPU",
                                 .dims = {64, 128, 256},
                                 .any_type = false,
                                 .roles = false,
                                 .shares = false,
                                 .selects_sliding = false,
                                 .positions = false,
                                 .turns_protected = false,
                                 .gathers = false,
                                 .halves = 16384};
  return device == Device::kCuda ? kGpu : kCpu;
}

size_t Asked::block() const {
  return std::max(keys.coded ? keys.block : 0, values.coded ? values.block : 0);
}

size_t Asked::learns() const {
  const size_t rows = std::max(keys.learns, values.learns), unit = std::max<size_t>(block(), 1);
  return (rows + unit - 1) / unit * unit;  // whole groups are coded then
}

namespace {

using Found = std::vector<Difference>;

void require(Found& found, bool fits, std::string asked, std::string there) {
  if (!fits) found.push_back({std::move(asked), std::move(there)});
}

void compare_parameters(Found& found, const Offers& side) {
  for (const Limit& l : side.limits)
    require(found, l.asked.empty(), l.asked, fmt::format("{} is {}", l.parameter, l.there));
}

/// The types of rows, of any policy.
void compare_types(Found& found, const Asked& a, const DeviceOffers& d) {
  if (d.any_type) return;
  require(found, a.key_rows == a.value_rows, "a cache of keys and values in different types",
          "all exact rows are f16, or all bf16 (dtype=bf16)");
  require(found,
          a.coded() || a.needs.body == Needs::Body::kNone ||
              (a.key_body == a.key_rows && a.value_body == a.value_rows),
          fmt::format("a cache of {} rows whose body is in another type", to_string(a.key_rows)),
          "without codes all rows have one type");
  require(found, a.key_rows != DType::kF32, "a cache of f32 rows",
          "rows are f16 or bf16: tensor cores multiply 16 bits");
}

/// Whether codes can store what the selector keeps of them.
void compare_rows(Found& found, const Asked& a, const DeviceOffers& d, const std::string& what) {
  const Needs& n = a.needs;
  const bool drawn = n.body == Needs::Body::kDrawn;
  const bool lacks_positions = a.keys.before_rope && !d.positions;
  require(found, n.all() || !(a.keys.aged || a.values.aged), what,
          "rows that age are all of them: exact+ladder");
  require(found, !drawn || !lacks_positions, what,
          "heads that draw their rows fill groups of their own, where keys before RoPE have no "
          "positions beside them: codecs of keys after RoPE");
  require(found, !drawn || a.learns() == 0, what,
          "heads have different first rows then: codecs without tables of first rows");
  require(found, !drawn || n.evicts == 0 || !(a.keys.shares || a.values.shares),
          what + " with heavy rows",
          "rows that were coded come in other groups then: codecs whose "
          "rows share nothing");
  const bool whole = n.body == Needs::Body::kCoreset && (a.keys.shares || a.values.shares);
  require(found, !whole || n.evicts % a.block() == 0,
          fmt::format("{} with heavy rows of which {} leave together", what, n.evicts),
          fmt::format("as many leave as are coded together: heavy_interval is a multiple of {}",
                      a.block()));
  require(
      found, drawn || a.learns() <= a.unselected,
      fmt::format("{}, whose tables are made of the first {} rows behind the window,", what,
                  a.learns()),
      fmt::format("rows are not selected before there are as many, and here they are from {} on: "
                  "a larger budget, a larger store of heavy rows, or smaller tables",
                  a.unselected));
}

}  // namespace

std::vector<Difference> compare(const Asked& a) {
  const DeviceOffers& d = DeviceOffers::of(a.device);
  const Needs& n = a.needs;
  const bool plain = n.all() || n.body == Needs::Body::kNone, coded = a.coded();
  const bool same = a.keys.codec == a.values.codec;
  const std::string codecs =
      same ? a.keys.codec : fmt::format("k:{}+v:{}", a.keys.codec, a.values.codec);
  const std::string what = a.selector + " over " + codecs;
  Found found;

  require(found, d.dims.empty() || std::ranges::count(d.dims, a.head_dim) > 0,
          fmt::format("a head_dim of {}", a.head_dim),
          fmt::format("head_dim is one of {}", fmt::join(d.dims, ", ")));
  require(found, d.roles || !n.roles,
          fmt::format("{} with rows that count for one of softmax's two sums alone", a.selector),
          "rows count for both");
  const bool alike = !a.keys.shares && !a.values.shares && !a.keys.before_rope && a.learns() == 0;
  require(
      found, d.shares || !n.shared || !coded || alike, what,
      "heads that share a budget have blocks of their own: codecs whose rows share nothing, with "
      "keys after RoPE");
  const bool uneven = n.shared || n.body == Needs::Body::kDrawn;
  require(found, d.shares || !uneven || !coded || a.head_dim <= 128,
          fmt::format("{} at a head_dim of {}", what, a.head_dim),
          "heads that hold different numbers of rows store them in codes at head_dim 64 and 128: "
          "exact rows, or a selector that keeps as many in each head");
  require(found, d.shares || !n.shared || !a.apart,
          fmt::format("{} for heads with others between them", a.selector),
          "heads that share a budget lie side by side");
  require(found, a.selector_there, fmt::format("the selector '{}'", a.selector),
          "it has no half for this device");
  require(found, d.halves == 0 || n.halves <= d.most_halves(a.head_dim),
          fmt::format("{} with halvings of {} rows", a.selector, n.halves),
          fmt::format("at most {} rows are halved at once", d.most_halves(a.head_dim)));
  require(
      found, !n.gathered || a.prompt == PromptReading::kOnce,
      fmt::format("a selection of a prompt's rows in one pass with prompt={}", to_string(a.prompt)),
      "all rows must be there: prompt=once");
  compare_types(found, a, d);

  for (const Offers* side : {&a.keys, &a.values}) {
    if (!coded || (same && side == &a.values)) break;
    require(found, side->there, fmt::format("the codec '{}'", side->codec),
            "it has no half for this device");
    compare_parameters(found, *side);
  }
  require(
      found, !coded || a.keys.code == a.values.code || (a.keys.levels && a.values.levels),
      fmt::format("a cache of keys and values in different codecs, {},", codecs),
      "pairs with kernels are f16, bf16, int8, int4, kivi, qjl, turboquant, gear, kvquant and kvtc "
      "in any mix, keys in qjl(residual=0) with values in kivi(bits=2), and csr or ladder on both "
      "sides");
  if (coded) compare_rows(found, a, d, what);

  const std::string in_window =
      fmt::format("in a layer that slides over a window of {} tokens", a.slides);
  require(found, a.slides == 0 || d.selects_sliding || plain,
          fmt::format("the selector '{}' {}", a.selector, in_window),
          "exact, local and streaming_llm are there, selectors by score whose budget is no smaller "
          "than that window, and every one while the context is no longer than it");
  require(found, d.gathers || a.prompt != PromptReading::kOnce,
          fmt::format("prompt={}", to_string(a.prompt)),
          "rows are selected as they come, in a prompt that is read exactly as well: prompt=exact");
  require(found, d.turns_protected || !a.protect || !n.cache_positions,
          "protecting tokens under positions inside the cache (rope=cache)", "rope=true does");
  require(found, d.positions || !a.protect || !coded || !n.all() || !a.keys.before_rope,
          "protecting tokens over codes of keys before RoPE",
          "codes of keys as they are attended to do");
  return found;
}

}  // namespace pith
