// The registry row of balancekv, its block mode, and the merge and reduce that both modes share.

#include "methods/balancekv/balancekv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "pith/error.h"

namespace pith {
namespace {

// Tags of a row's random numbers: a doubling of its weight each, strata apart from halvings.
constexpr uint32_t kStratumTag = 255, kDenominatorTags = 128;

class BalanceBlock final : public Selector {
 public:
  BalanceBlock(const Context& context, const SelectorSite& site, const BalanceRule& rule,
               std::string text)
      : context_(context),
        site_(site),
        rule_(rule),
        text_(std::move(text)),
        tree_(context.memory, MemoryKind::kMetadata) {
    tree_.reserve(1);
    tree_.push_back(BalanceTree{});
  }

  void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) override {
    if (bodies.empty()) return;
    const BalanceTree before = tree_[0];
    context_.pool.parallel_for(bodies.size(), [&](size_t h, int) {
      BalanceTree tree = before;
      const BalanceReducer reducer(context_, rule_,
                                   Philox(site_.seed, site_.layer, bodies[h].head()));
      reducer.take(bodies[h].store(), tree, rows[h], true);
      if (h == 0) tree_[0] = tree;  // exactly half of each block stays: the same for every head
    });
  }
  // Whole blocks leave n / 2^T rows; each level below holds less than a block.
  size_t rows_after(size_t n) const override {
    return std::min(n, (n >> rule_.rounds) + size_t{rule_.block} * rule_.rounds);
  }
  size_t state_bytes() const override { return tree_.size() * sizeof(BalanceTree); }
  size_t allocated_state_bytes() const override { return tree_.capacity_bytes(); }
  std::string describe() const override { return text_; }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<BalanceBlock>(*this); }

 private:
  Context context_;
  SelectorSite site_;
  BalanceRule rule_;
  std::string text_;
  Array<BalanceTree> tree_;  // [1]
};

/// T = log2(1/rate), or the least T for which the context's rows fit the budget.
uint32_t rounds_of(const BalanceOptions& o, const BudgetSite& site) {
  if (!o.budget) return static_cast<uint32_t>(std::lround(std::log2(1 / o.rate.value_or(0.25))));
  const size_t rows = site.rows(*o.budget, "balancekv: budget");
  uint32_t rounds = 0;
  while (rounds < kBalanceRounds && (site.context >> rounds) > rows) ++rounds;
  return rounds;
}

std::unique_ptr<Selector> make_balancekv(const SelectorRequest& r) {
  auto options = r.options.as<BalanceOptions>();
  const BalanceRule rule = balance_rule(options, r.budget, r.site.scale);
  if (rule.endless && rule.rounds == 0)
    throw Error(ErrorCode::kUnsupported,
                "balancekv: endless=true goes with a rate of 1/2 or less, and this budget holds "
                "every row of the context");
  options.rate = std::ldexp(1.0, -static_cast<int>(rule.rounds));
  options.budget.reset();
  options.heavy = options.heavy.at(r.budget);
  std::string text = write_options("balancekv", options);
  if (options.mode == BalanceOptions::Mode::kStream)
    return make_balance_stream(r.context, r.site, rule, std::move(text));
  return with_heavy(r, options.heavy,
                    std::make_unique<BalanceBlock>(r.context, r.site, rule, std::move(text)));
}

}  // namespace

Fields BalanceOptions::fields() {
  const bool stream = mode == Mode::kStream;
  return Fields{choice<Mode>("mode", mode, {{"block", Mode::kBlock}, {"stream", Mode::kStream}},
                             "block (exactly half of each) or stream (the guaranteed form)"),
                number("rate", rate, {1.0 / (1 << kBalanceRounds), 1},
                       "share of the body's rows that stay: 2^-T")
                    .unset("0.25"),
                rows("budget", budget, "rows instead: the largest rate that fits"),
                whole("b", block, {.least = 2, .most = 65536, .multiple = 2},
                      "rows of a block (the paper's t in mode=stream)")} +
         halving.fields("0") +
         Fields{
             choice<Walk>(
                 "walk", walk,
                 {{"pairs", Walk::kPairs}, {"rows", Walk::kRows}, {"exact", Walk::kRowsExact}},
                 "pairs of neighbours, exact (rows, filled to half), or rows (mode=stream)"),
             number("eps", epsilon, {1e-9, 1}, "mode=stream: precision, for the erasure of buckets")
                 .when(stream),
             choice<KeptSide>("side", side,
                              {{"smaller", KeptSide::kSmaller}, {"coin", KeptSide::kCoin}},
                              "walk=rows: the side that stays")
                 .when(stream),
             flag("endless", endless, "mode=stream: bounded rows whatever the length; weights rise")
                 .when(stream)} +
         heavy.fields();
}

void BalanceOptions::check(const std::string& method) const {
  const auto refuse = [&](ErrorCode code, const std::string& why) {
    throw Error(code, fmt::format("{}: {}", method, why));
  };
  const double rounds = std::log2(1 / rate.value_or(0.25));
  const bool stream = mode == Mode::kStream;
  if (rate && budget)
    refuse(ErrorCode::kInvalidArgument, "rate and budget are both given; give one of them");
  if (std::fabs(rounds - std::round(rounds)) > 1e-6)
    refuse(ErrorCode::kInvalidArgument,
           fmt::format("rate={} is not a power of 1/2; each round keeps half: use 1, 0.5, 0.25, "
                       "0.125, ...",
                       *rate));
  if (stream && heavy.heavy)
    refuse(ErrorCode::kUnsupported,
           "heavy rows count for both sums, which mode=stream keeps apart; use mode=block");
  if (endless && (!stream || (!budget && std::lround(rounds) == 0)))
    refuse(ErrorCode::kUnsupported,
           "endless=true goes with mode=stream and a rate of 1/2 or less; express(s=...) is the "
           "bounded form of mode=block");
  if (!stream && walk == Walk::kRows)
    refuse(ErrorCode::kUnsupported,
           "mode=block keeps exactly half of a block: walk=pairs or walk=exact; walk=rows is what "
           "mode=stream does");
}

BalanceRule balance_rule(const BalanceOptions& o, const BudgetSite& budget, float scale) {
  BalanceRule rule;
  rule.rounds = rounds_of(o, budget);
  rule.block = static_cast<uint32_t>(o.block);
  rule.weight_exponent = static_cast<float>(o.halving.weight);
  rule.epsilon = static_cast<float>(o.epsilon);
  rule.endless = o.endless;
  rule.halving = o.halving.rule(scale);
  rule.halving.side = o.side;
  rule.halving.walk = o.walk;
  return rule;
}

float BalanceReducer::log_weight(double weight) const {
  return rule_.weight_exponent * static_cast<float>(std::log(weight));
}

size_t BalanceReducer::take(RowStore& store, BalanceTree& tree, const NewRows& rows,
                            bool values) const {
  size_t failures = 0;
  for (size_t done = 0; done < rows.count;) {
    done += take_some(store, tree, rows.slice(done, rows.count - done), values);
    if (rule_.rounds > 0 && tree.levels[0] == rule_.block) failures += reduce(store, tree, values);
  }
  return failures;
}

// Rows up to the end of a batch or a stratum at most. A stratum keeps one row, drawn by reservoir
// sampling, which has the weight of the rows counted so far.
size_t BalanceReducer::take_some(RowStore& store, BalanceTree& tree, const NewRows& rows,
                                 bool values) const {
  if (tree.base == 0) {
    const size_t room = rule_.block - tree.levels[0];
    const size_t n = rule_.rounds == 0 ? rows.count : std::min(rows.count, room);
    store.append(rows.slice(0, n));
    tree.levels[0] += static_cast<uint32_t>(n);
    return n;
  }
  const uint64_t size = uint64_t{1} << tree.base;
  const size_t n = std::min<uint64_t>(rows.count, size - tree.stratum);
  size_t pick = n;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t word = random_.word64(static_cast<uint64_t>(rows.position(i)),
                                         values ? kStratumTag : kStratumTag - 1);
    if (tree.stratum + i == 0 || word < UINT64_MAX / (tree.stratum + i + 1)) pick = i;
  }
  if (pick < n) {
    if (tree.stratum > 0) store.keep_after(store.rows() - 1, {});
    store.append(rows.slice(pick, 1));
  }
  tree.stratum += n;
  store.set_log_weight(store.rows() - 1, log_weight(static_cast<double>(tree.stratum)));
  if (tree.stratum == size) {
    tree.stratum = 0;
    ++tree.levels[0];
  }
  return n;
}

SegmentHalved BalanceReducer::halve_level(RowStore& store, const BalanceTree& tree, uint32_t level,
                                          bool values) const {
  HalvingRule rule = rule_.halving;
  rule.values = values;
  const uint32_t doublings = tree.base + level;  // of the rows' weight so far
  const size_t count = tree.levels[level];
  return halve_segment(
      context_, store, rule,
      {store.rows() - count, count, log_weight(std::ldexp(1.0, static_cast<int>(doublings) + 1))},
      {random_, values ? doublings : kDenominatorTags + doublings});
}

// The listing's p = j/t, halved while it is an integer: level i is balanced into level i+1.
size_t BalanceReducer::reduce(RowStore& store, BalanceTree& tree, bool values) const {
  size_t failures = 0;
  uint64_t p = ++tree.batches;
  for (uint32_t i = 0; i < rule_.rounds; ++i, p /= 2) {
    const SegmentHalved half = halve_level(store, tree, i, values);
    tree.levels[i] = 0;
    tree.levels[i + 1] += static_cast<uint32_t>(half.kept);
    failures += half.failures;
    if (p % 2 != 0) return failures;
  }
  if (!rule_.endless) return failures;
  const SegmentHalved half = halve_level(store, tree, rule_.rounds, values);
  tree.levels[rule_.rounds] = static_cast<uint32_t>(half.kept);
  ++tree.base;
  tree.batches /= 2;
  return failures + half.failures;
}

SelectorRow balancekv_row() {
  SelectorRow row;
  row.info.name = "balancekv";
  row.info.is_selector = true;
  row.info.summary = "halves blocks of rows by a self-balancing walk";
  row.info.source = "BalanceKV: Streaming Attention Approximation via Discrepancy Theory";
  row.info.size_parameter = "budget";
  row.takes<BalanceOptions>();
  row.make = make_balancekv;
  row.more_side_bytes = [](const MethodOptions& o) {
    return o.as<BalanceOptions>().heavy.side_bytes();
  };
  row.default_sink = 4;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 64u; };
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  return row;
}

}  // namespace pith
