#include "policy/resolved.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "pith/error.h"
#include "policy/device_room.h"
#include "policy/host_room.h"
#include "policy/refusal.h"
#include "rows/device_growth.h"

namespace pith {
namespace {

constexpr size_t kBlockOnGpu = kCodedTogether;

SideChoice choose_side(const PolicyRule& rule, const RulePlace& place, Side side) {
  // Exact rows have the type that the policy names, or the body's own if that is dense, or f16.
  const std::optional<PolicyPart>& part = side == Side::kKeys ? rule.key_codec : rule.value_codec;
  SideChoice choice;
  choice.codec = part.value_or(PolicyPart{to_string(rule.dtype.value_or(DType::kF16)), {}});
  const CodecRow& row = codec_row(choice.codec.name);
  choice.exact = rule.dtype.value_or(row.dense.value_or(DType::kF16));
  choice.body = row.dense.value_or(choice.exact);
  choice.options = row.read(choice.codec);
  choice.sizes = row.make(choice.options, side);
  choice.sizes->check_context(place.shape.context);
  const std::string text = to_string(choice.codec);
  Offers& offers = choice.offers;
  const bool on_gpu = place.device == Device::kCuda;
  const auto dim = static_cast<size_t>(place.shape.head_dim);
  const Offers gpu =
      row.on_gpu ? row.on_gpu(choice.options, {side, dim}) : Offers{.codec = text, .there = false};
  if (gpu.shares) choice.together = gpu.block;  // on both devices alike
  if (row.dense)
    offers = {.codec = text, .levels = !on_gpu || *row.dense != DType::kF32, .coded = false};
  else if (!on_gpu)
    offers = {.codec = text,
              .before_rope = choice.sizes->pre_rope(),
              .block = choice.sizes->block_rows()};
  else
    offers = gpu;
  return choice;
}

/// Budgets as rows, sink and window. `waiting`: the most rows behind the window that wait for the
/// others of their block.
void place_selector(CohortPolicy& c, const SelectorRow& row, const RulePlace& place,
                    size_t waiting) {
  const PolicyRule& rule = c.rule;
  if (row.owns_window && rule.window)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' has its own window; write {}(window={})", row.info.name,
                            row.info.name, *rule.window));
  const CacheShape& shape = place.shape;
  const auto& sliding = shape.sliding_window;
  const int64_t seen = sliding.empty() ? 0 : sliding[static_cast<size_t>(place.layer)];
  const auto exact_bytes = static_cast<double>(c.exact_row_bytes());
  c.budget.context = shape.context;
  c.budget.percent_of = shape.percent_of;
  c.budget.caches = static_cast<size_t>(shape.layers * shape.kv_heads);
  c.budget.together = std::max(c.keys.together, c.values.together);
  const bool usual = c.coded() || !row.sink_of_codes;
  uint32_t sink = rule.sink.value_or(usual ? row.default_sink : 0);
  // For a window that is the selector's own budget:
  c.budget.bytes = [&](size_t rows) {
    return static_cast<double>(sink + rows + waiting) * exact_bytes;
  };
  uint32_t window = rule.window.value_or(row.default_window(c.options, c.budget, c.coded()));
  if (seen > 0) {
    // The layer looks back `seen` rows at most: a sink would never be seen, nor a longer window.
    sink = 0;
    window = static_cast<uint32_t>(std::min<int64_t>(window, seen));
  }
  c.site.sink = sink;
  c.site.window = window;
  c.site.sliding_window = seen;
  c.side_bytes = row.side_bytes + (row.more_side_bytes ? row.more_side_bytes(c.options) : 0);
  c.state = row.state ? row.state(c.options, c.site) : StateSize();
  if (c.keys.sizes->first_queries() > 0) {  // their sums, and what an empty store makes of them
    const size_t pairs = c.site.head_dim / 2;
    c.state.bytes += static_cast<double>(pairs * (sizeof(float) + 1));
    c.state.buffers += 2;
  }
  // Any exact row may carry mass.
  const double exact =
      static_cast<double>(size_t{sink} + window + waiting) * (exact_bytes + sizeof(float));
  c.budget.bytes = [fixed = exact + c.state.bytes, side = c.side_bytes, dim = c.site.head_dim,
                    keys = c.keys.sizes, values = c.values.sizes](size_t rows) {
    return fixed + static_cast<double>(rows) * side +
           std::ceil(keys->most_bytes(rows, dim, true) + values->most_bytes(rows, dim, true));
  };
}

/// When rows leave the window. The GPU codes 32 rows at a time, also in codecs that the CPU gives
/// single rows: up to 31 rows stay exact for longer. A sliding layer drops what no query will see.
ScheduleShape schedule_of(const CohortPolicy& c) {
  ScheduleShape schedule{c.site.sink, c.site.window,
                         std::lcm(c.keys.sizes->block_rows(), c.values.sizes->block_rows())};
  if (c.device == Device::kCpu) return schedule;
  const Asked asked = c.asked();
  if (c.slides > 0) {
    // Of the rows before a query all but the last slides - 1 are hidden for good.
    const size_t most = c.slides - 1;
    if (asked.needs.all() && (!asked.coded() || schedule.window >= most)) return {0, most, 1};
    schedule.window = std::min(schedule.window, most);
  }
  const bool shares = c.keys.offers.shares || c.values.offers.shares;
  switch (asked.needs.body) {
    case Needs::Body::kNone: break;
    case Needs::Body::kAll: schedule.block = asked.coded() ? asked.block() : kBlockOnGpu; break;
    default:
      if (!asked.coded()) break;
      if ((asked.needs.body == Needs::Body::kDrawn || asked.needs.body == Needs::Body::kCoreset) &&
          asked.needs.evicts == 0)
        schedule.block = kBlockOnGpu;
      if (shares && asked.needs.again()) schedule.block = std::lcm(schedule.block, asked.block());
  }
  return schedule;
}

/// Where a layer hides rows and `exact` holds no more of them than the selector may, it is `exact`
/// there. A device that does not select in such layers holds all rows too, under the selector's
/// name, where that surely keeps all that a query can see.
void spare_selections(CohortPolicy& c) {
  if (c.slides == 0 || c.selector.needs.all()) return;
  const SelectorRow& row = selector_row("exact");
  const MethodOptions options = row.read({"exact", {}});
  ResolvedSelector exact = row.resolve({options, c.budget, c.site});
  const Rule& rule = *c.selector.rule;
  const size_t tokens = c.budget.context > 0 ? c.budget.context : kEndlessStream;
  const bool as_many = exact.rule->most_rows(tokens) <= rule.mean_rows(tokens);
  const bool selects = DeviceOffers::of(c.device).selects_sliding;
  if (selects ? !as_many : rule.keeps_newest() < c.slides) return;
  if (!as_many) exact.text = c.selector.text;
  c.selector = std::move(exact);
  c.side_bytes = row.side_bytes;
  c.state = {};
}

/// Rows of a body when it may first be selected from, counted up to `most`.
size_t unselected_rows(const Rule& rule, size_t most) {
  PlanState state;
  Steps steps;
  for (size_t n = 1; n <= most; ++n) {
    steps.clear();
    rule.feed(state, Zone::kLeaving, 1, steps);
    PlanState at_end = state;
    rule.end_prompt(at_end, steps);
    for (const Step& step : steps) {
      if (step.op == Op::kSelect && step.keep < step.held + step.rows) return step.held + step.rows;
      if (step.op == Op::kSplit) return step.held;
    }
  }
  return most;
}

}  // namespace

std::unique_ptr<Codec> SideChoice::make_codec(Side side) const {
  return codec_row(codec.name).make(options, side);
}

size_t CohortPolicy::exact_row_bytes() const {
  return site.head_dim * (size_of(keys.exact) + size_of(values.exact));
}

ProtectedRows CohortPolicy::protected_rows(const ProtectedRows& all) const {
  return site.sliding_window > 0 ? ProtectedRows() : all.from(static_cast<int64_t>(site.sink));
}

Asked CohortPolicy::asked(bool protect) const {
  Asked a{.device = device,
          .head_dim = static_cast<int>(site.head_dim),
          .slides = slides,
          .selector = rule.selector.name,
          .selector_there = device == Device::kCpu || selector_row(rule.selector.name).on_gpu,
          .needs = selector.needs,
          .keys = keys.offers,
          .values = values.offers,
          .key_rows = keys.exact,
          .value_rows = values.exact,
          .key_body = keys.body,
          .value_body = values.body};
  a.unselected = a.learns() > 0 ? unselected_rows(*selector.rule, a.learns()) : 0;
  a.protect = protect && site.sliding_window == 0;
  a.prompt = prompt;
  a.apart = heads.back() - heads.front() + 1 != static_cast<int>(heads.size());
  return a;
}

std::string CohortPolicy::describe(const ProtectedRows& protect) const {
  const std::string kept = to_string(protected_rows(protect).ranges());
  return fmt::format("{}+k:{}+v:{},sink={},window={}{}{}", selector.text, to_string(keys.codec),
                     to_string(values.codec), site.sink, site.window, prompt_setting(prompt),
                     kept.empty() ? "" : fmt::format(" [protected {}]", kept));
}

void CohortPolicy::estimate(Ledger& ledger, size_t tokens, const ProtectedRows& protect) const {
  const ProtectedRows rows = protected_rows(protect);
  const auto of_protected = static_cast<size_t>(rows.before(static_cast<int64_t>(tokens)));
  const Occupancy o = occupancy(schedule, tokens - of_protected);
  const size_t exact = o.sink + o.window + of_protected, dim = site.head_dim;
  // Gaps where rows are protected: positions are no longer contiguous.
  const double side =
      of_protected > 0 ? std::max<double>(side_bytes, sizeof(uint32_t)) : side_bytes;
  const size_t body = selector.rule->mean_rows(o.body), count = heads.size();
  const bool evicted = leaves_gaps(body, o.body);
  const double coded = body == 0 ? 0
                                 : keys.sizes->most_bytes(body, dim, evicted) +
                                       values.sizes->most_bytes(body, dim, evicted);
  const size_t before = ledger.payload + ledger.metadata;
  ledger.payload += count * (exact * exact_row_bytes() + static_cast<size_t>(std::ceil(coded)));
  const size_t exact_side = selector.rule->mass({}, 1).queries > 0 ? sizeof(float) : 0;
  ledger.metadata += static_cast<size_t>(static_cast<double>(count * body) * side) +
                     count * of_protected * sizeof(uint32_t) +
                     count * (o.sink + o.window) * exact_side +
                     static_cast<size_t>(static_cast<double>(count) * state.bytes);
  const size_t used = ledger.payload + ledger.metadata - before;
  if (device == Device::kCpu) {
    ledger.slack +=
        std::max(used, count * most_on_host(*this, {o, of_protected, body, side})) - used;
  } else {
    const BesideRows beside = beside_rows_on_gpu(*this, {{o, of_protected, body, side}, coded});
    ledger.slack += count * beside.free;
    ledger.shared += count * beside.tables;
  }
  for (const Side s : {Side::kKeys, Side::kValues}) {
    RowsRequest request{.side = s, .dim = dim, .head = static_cast<uint32_t>(heads.back())};
    request.layer = site.layer;
    request.model = model;
    ledger.shared += (s == Side::kKeys ? keys : values).sizes->table_bytes(request);
  }
  ledger.tokens = std::max<uint64_t>(ledger.tokens, tokens);
  ledger.rows_seen += tokens * count;
  ledger.rows_kept += (exact + body) * count;
  ledger.channels_seen += tokens * count * 2 * dim;
  ledger.channels_kept += (exact + body) * count * 2 * dim;
}

CohortPolicy place_rule(const PolicyRule& rule, const RulePlace& place) {
  const SelectorRow& row = selector_row(rule.selector.name);
  const CacheShape& shape = place.shape;
  CohortPolicy c;
  c.rule = rule;
  c.options = row.read(rule.selector);
  c.device = place.device;
  c.prompt = place.prompt;
  c.layer = place.layer;
  c.heads = place.heads;
  c.model = shape.model;
  c.keys = choose_side(rule, place, Side::kKeys);
  c.values = choose_side(rule, place, Side::kValues);
  c.site.seed = place.seed;
  c.site.layer = static_cast<uint32_t>(place.layer);
  c.site.layers = static_cast<size_t>(shape.layers);
  c.site.heads = place.heads.size();
  c.site.group = static_cast<size_t>(shape.query_heads / shape.kv_heads);
  c.site.head_dim = static_cast<size_t>(shape.head_dim);
  c.site.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  // How many rows wait behind the window may follow from the rows that a budget is worth, and bytes
  // count those that wait.
  c.schedule.block = std::lcm(c.keys.sizes->block_rows(), c.values.sizes->block_rows());
  for (size_t counted = 0; counted < c.schedule.block;) {
    counted = c.schedule.block;
    place_selector(c, row, place, counted - 1);
    c.selector = row.resolve({c.options, c.budget, c.site});
    const auto seen = static_cast<size_t>(c.site.sliding_window);
    c.slides = shape.context > 0 && seen >= shape.context ? 0 : seen;
    spare_selections(c);
    c.schedule = schedule_of(c);
  }
  return c;
}

CohortPolicy resolve_rule(const PolicyRule& rule, const RulePlace& place) {
  CohortPolicy c = place_rule(rule, place);
  const Asked asked = c.asked();
  if (const auto found = compare(asked); !found.empty()) refuse(rule, place, asked, found);
  return c;
}

namespace {

// Bounds that no model reaches: without them a wrong number takes all memory, or overflows, before
// anything else notices it.
constexpr int kMostLayers = 1 << 20, kMostHeads = 4096;
constexpr size_t kMostTokens = size_t{1} << 40;

void check_tokens(size_t tokens, const char* what) {
  if (tokens > kMostTokens)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} of {} tokens; at most {}", what, tokens, kMostTokens));
}

const CacheShape& checked(const CacheShape& s) {
  const bool positive = s.layers > 0 && s.query_heads > 0 && s.kv_heads > 0;
  if (!positive || s.query_heads % s.kv_heads != 0)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} layers, {} query heads and {} KV heads: all must be positive, and "
                            "query heads a multiple of KV heads",
                            s.layers, s.query_heads, s.kv_heads));
  if (s.head_dim <= 0 || s.head_dim % 16 != 0 || s.head_dim > 512)
    throw Error(ErrorCode::kUnsupported,
                fmt::format("head_dim {}; supported: multiples of 16 up to 512", s.head_dim));
  if (s.layers > kMostLayers || s.query_heads > kMostHeads)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} layers and {} query heads; at most {} and {}", s.layers,
                            s.query_heads, kMostLayers, kMostHeads));
  check_tokens(s.context, "a context");
  return s;
}

/// Indices that a policy names but the model lacks are mistakes, not no-ops.
void check_ranges(const std::vector<IndexRange>& ranges, int size, const char* what) {
  for (const IndexRange& r : ranges) {
    const int first = r.first < 0 ? r.first + size : r.first;
    const int last = r.last < 0 ? r.last + size : r.last;
    if (first < 0 || last >= size || first > last)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("policy: {}={}-{} names none of the {} {} (0 to {}, or -1 for the "
                              "last)",
                              what, r.first, r.last, size, what, size - 1));
  }
}

}  // namespace

ResolvedPolicy::ResolvedPolicy(const Policy& policy, const CacheShape& shape, uint64_t seed,
                               Device device)
    : shape_(checked(shape)), prompt_(policy.prompt), layers_(static_cast<size_t>(shape.layers)) {
  for (const PolicyRule& rule : policy.rules) {
    check_ranges(rule.layers, shape.layers, "layers");
    check_ranges(rule.heads, shape.kv_heads, "heads");
  }
  const CohortPolicy* first = nullptr;
  for (int l = 0; l < shape.layers; ++l) {
    // Heads that share a rule share a selector.
    std::vector<std::pair<const PolicyRule*, std::vector<int>>> split;
    for (int g = 0; g < shape.kv_heads; ++g) {
      const PolicyRule* rule = &policy.rule_for(l, shape.layers, g, shape.kv_heads);
      const auto it = std::ranges::find(split, rule, [](const auto& s) { return s.first; });
      if (it == split.end())
        split.push_back({rule, {g}});
      else
        it->second.push_back(g);
    }
    auto& cohorts = layers_[static_cast<size_t>(l)];
    cohorts.reserve(split.size());
    for (const auto& [rule, heads] : split) {
      cohorts.push_back(resolve_rule(*rule, {shape_, l, heads, seed, device, prompt_}));
      if (!first) first = cohorts.data();
      if (!DeviceOffers::of(device).any_type && cohorts.back().keys.exact != first->keys.exact)
        refuse_types();
    }
  }
}

void ResolvedPolicy::check_without_rope(int layer) const {
  for (const CohortPolicy& cohort : this->layer(layer))
    if (cohort.selector.needs.rope)
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("policy '{}' rotates queries back to their positions, which needs the "
                      "model's RoPE; none is known here: give it, or '{}(rope=false)' for "
                      "queries without RoPE",
                      to_string(cohort.rule.selector), cohort.rule.selector.name));
}

void ResolvedPolicy::check_protect() const {
  for (const auto& cohorts : layers_)
    for (const CohortPolicy& c : cohorts) {
      const Asked asked = c.asked(true);
      if (const auto found = compare(asked); !found.empty())
        refuse(c.rule, {shape_, c.layer, c.heads, c.site.seed, c.device, prompt_}, asked, found);
    }
}

std::string ResolvedPolicy::describe(const ProtectedRows& protect) const {
  std::vector<std::string> lines;
  std::vector<std::pair<int, int>> runs;
  for (int l = 0; l < shape_.layers; ++l) {
    std::string line;
    for (const CohortPolicy& c : layer(l)) {
      if (layer(l).size() > 1)
        line += fmt::format("{}heads {}: ", line.empty() ? "" : " | ", fmt::join(c.heads, ","));
      line += c.describe(protect);
    }
    if (!lines.empty() && lines.back() == line)
      runs.back().second = l;
    else
      lines.push_back(line), runs.emplace_back(l, l);
  }
  std::string text;
  for (size_t i = 0; i < lines.size(); ++i)
    text +=
        fmt::format("{}layers {}-{}: {}", i ? "\n" : "", runs[i].first, runs[i].second, lines[i]);
  return text;
}

Ledger ResolvedPolicy::estimate(size_t tokens, const ProtectedRows& protect) const {
  check_tokens(tokens, "an estimate");
  Ledger ledger;
  for (const auto& cohorts : layers_)
    for (const CohortPolicy& c : cohorts) c.estimate(ledger, tokens, protect);
  return ledger;
}

}  // namespace pith
