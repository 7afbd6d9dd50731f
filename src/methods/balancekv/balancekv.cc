// The registry row of balancekv, its block mode, and the merge and reduce that both modes share.

#include "methods/balancekv/balancekv.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "compress/heavy.h"
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

Walk parse_walk(const std::string& text) {
  return text == "pairs" ? Walk::kPairs : text == "rows" ? Walk::kRows : Walk::kRowsExact;
}

std::string walk_of(const Parameters& p) {
  return p.text("walk").empty() ? "pairs" : p.choice("walk", {"pairs", "rows", "exact"});
}

/// T = log2(1/rate), or the least T for which the context's rows fit the budget.
uint32_t rounds_of(const SelectorPlace& r) {
  if (!r.parameters.given("budget")) {
    const double rounds =
        std::log2(1 / r.parameters.number("rate", 1.0 / (1 << kBalanceRounds), 1));
    if (std::fabs(rounds - std::round(rounds)) > 1e-6)
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("balancekv: rate={} is not a power of 1/2; each round keeps half: use "
                      "1, 0.5, 0.25, 0.125, ...",
                      r.parameters.text("rate")));
    return static_cast<uint32_t>(std::lround(rounds));
  }
  if (r.parameters.given("rate"))
    throw Error(ErrorCode::kInvalidArgument,
                "balancekv: rate and budget are both given; give one of them");
  const size_t rows = r.parameters.rows("budget", r.budget);
  uint32_t rounds = 0;
  while (rounds < kBalanceRounds && (r.budget.context >> rounds) > rows) ++rounds;
  return rounds;
}

std::unique_ptr<Selector> make_balancekv(const SelectorRequest& r) {
  const Parameters& p = r.parameters;
  const bool stream = p.choice("mode", {"block", "stream"}) == "stream";
  BalanceRule rule = balance_rule({r.parameters, r.budget, r.site});
  const std::string walk = walk_of(p);
  rule.endless = p.flag("endless");
  if (stream && has_heavy(p))
    throw Error(ErrorCode::kUnsupported,
                "balancekv: heavy rows count for both sums, which mode=stream keeps apart; use "
                "mode=block");
  if (rule.endless && (!stream || rule.rounds == 0))
    throw Error(ErrorCode::kUnsupported,
                "balancekv: endless=true goes with mode=stream and a rate of 1/2 or less; "
                "express(s=...) is the bounded form of mode=block");
  if (!stream && rule.halving.walk == Walk::kRows)
    throw Error(ErrorCode::kUnsupported,
                "balancekv: mode=block keeps exactly half of a block: walk=pairs or walk=exact; "
                "walk=rows is what mode=stream does");
  std::string text =
      fmt::format("balancekv(mode={},rate={},b={},balance={},centre={},temp={},beta={},weight={}",
                  stream ? "stream" : "block", std::ldexp(1.0, -static_cast<int>(rule.rounds)),
                  rule.block, rule.halving.balance, rule.halving.centre, rule.halving.temperature,
                  rule.halving.value_constant, rule.weight_exponent);
  text += fmt::format(",walk={}", walk);
  text += stream ? fmt::format(",eps={},side={},endless={})", rule.epsilon, p.text("side"),
                               rule.endless)
                 : ")";
  if (stream) return make_balance_stream(r.context, r.site, rule, std::move(text));
  return with_heavy(r, std::make_unique<BalanceBlock>(r.context, r.site, rule, std::move(text)));
}

}  // namespace

BalanceRule balance_rule(const SelectorPlace& r) {
  const Parameters& p = r.parameters;
  BalanceRule rule;
  rule.rounds = rounds_of(r);
  rule.block = static_cast<uint32_t>(p.count("b", 2));
  if (rule.block % 2 != 0)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("balancekv: b={} is odd; a block is halved: give an even b", rule.block));
  rule.weight_exponent = static_cast<float>(p.number("weight", 0, 1));
  rule.epsilon = static_cast<float>(p.number("eps", 1e-9, 1));
  rule.halving.scale = r.site.scale;
  rule.halving.temperature = static_cast<float>(p.number("temp", 0, 100));
  rule.halving.value_constant = static_cast<float>(p.number("beta", 0, 100));
  rule.halving.centre = p.flag("centre");
  rule.halving.balance = static_cast<float>(p.number("balance", 0, 100));
  rule.halving.side =
      p.choice("side", {"smaller", "coin"}) == "coin" ? KeptSide::kCoin : KeptSide::kSmaller;
  rule.halving.walk = parse_walk(walk_of(p));
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
  row.info = {
      "balancekv",
      true,
      "halves blocks of rows by a self-balancing walk",
      "BalanceKV: Streaming Attention Approximation via Discrepancy Theory",
      heavy_parameters(
          {{"rate", "0.25", "share of the body's rows that stay: 2^-T"},
           {"budget", "", "rows instead (a number, % or MiB): the largest rate that fits"},
           {"mode", "block", "block (exactly half of each) or stream (the guaranteed form)"},
           {"b", "256", "rows of a block (the paper's t in mode=stream)"},
           {"walk", "", "pairs of neighbours, exact (rows, filled to half), or rows (mode=stream)"},
           {"balance", "0", "times the paper's threshold; 1 = the paper's, 0 = greedy"},
           {"centre", "true", "subtract the block's mean key before the kernel"},
           {"temp", "0.25", "kernel temperature: exp(temp <k,k'> scale); 1 = the paper's"},
           {"beta", "0.1", "constant added to <v,v'>, times max|v|^2; 0 = the paper's"},
           {"weight", "1", "a row of weight w counts as w^weight"},
           {"eps", "0.1", "mode=stream: precision, for the erasure of buckets"},
           {"side", "smaller", "walk=rows: the side that stays: smaller or coin"},
           {"endless", "false", "mode=stream: bounded rows whatever the length; weights rise"}}),
      "budget"};
  row.make = make_balancekv;
  row.more_side_bytes = heavy_side_bytes;
  row.default_sink = 4;
  row.default_window = [](const Parameters&, const BudgetSite&, bool) { return 64u; };
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  return row;
}

}  // namespace pith
