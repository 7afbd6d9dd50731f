// The registry row of balancekv. Its block mode is a rule, HalveBlocks, and the halver that all
// such selectors share.

#include "methods/selectors/balancekv/balancekv.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>

#include "methods/methods.h"
#include "pith/error.h"

namespace pith {
namespace {

/// Body rows after n, at most: whole blocks leave n / 2^T, and each level below holds less than
/// one.
size_t most_rows(size_t n, size_t rounds, size_t block) {
  return std::min(n, (n >> rounds) + block * rounds);
}

/// Whether a flushed block can be halved so often.
bool halves(size_t rounds, size_t block) { return block % (size_t{1} << rounds) == 0; }

struct BalanceSizes {
  size_t rounds, block;
};

/// The least T for which a context's rows fit `rows`, those that wait in levels too: blocks are
/// then the largest that allow it, of less than 32 rows only if no others fit.
std::optional<BalanceSizes> fitting(const BalanceOptions& o, size_t context, size_t rows) {
  const size_t largest = o.block.value_or(256);
  for (const size_t least : {o.block.value_or(32), o.block.value_or(2)})
    for (size_t rounds = 0; rounds <= kBalanceRounds; ++rounds)
      for (size_t block = largest; block >= least; block /= 2)
        if (most_rows(context, rounds, block) <= rows && (!o.flush || halves(rounds, block)))
          return BalanceSizes{rounds, block};
  return std::nullopt;
}

/// The rows for a share that is too small for any blocks.
BalanceSizes smallest(const BalanceOptions& o, size_t context) {
  BalanceSizes best{0, o.block.value_or(2)};
  const size_t most = o.flush ? static_cast<size_t>(std::countr_zero(best.block)) : kBalanceRounds;
  for (size_t rounds = 1; rounds <= std::min(most, size_t{kBalanceRounds}); ++rounds)
    if (most_rows(context, rounds, best.block) < most_rows(context, best.rounds, best.block))
      best.rounds = rounds;
  return best;
}

/// T = log2(1/rate), or what fits the budget.
BalanceSizes sizes_of(const BalanceOptions& o, const BudgetSite& site) {
  if (!o.budget) {
    const long rounds = std::lround(std::log2(1 / o.rate.value_or(0.25)));
    return {static_cast<size_t>(rounds), o.block.value_or(256)};
  }
  const size_t rows = o.heavy.others(*o.budget, site, "balancekv: budget");
  if (const auto sizes = fitting(o, site.context, rows)) return *sizes;
  if (o.budget->unit == Budget::Unit::kPercent) return smallest(o, site.context);
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("balancekv: a budget of {} rows is less than the blocks of a context of "
                          "{} tokens need; raise it{}",
                          rows, site.context, o.block ? ", or lower b" : ""));
}

/// A budget of all rows: half of it for heavy rows, or as much as the blocks leave.
void divide(BalanceOptions& o, const BudgetSite& site) {
  const size_t rows = site.rows(*o.budget, "balancekv: budget", 4);
  size_t others = rows / 2;
  while (others < rows && !fitting(o, site.context, others)) ++others;
  if (others < rows || o.budget->unit != Budget::Unit::kPercent) o.budget = Budget::rows(others);
  if (rows - others >= 2)  // one heavy row would be taken by the one that comes
    o.heavy.heavy = Budget::rows(rows - others);
  else
    o.heavy.none = true;
}

ResolvedSelector resolve_balancekv(const SelectorPlace& r) {
  const BalanceOptions options = r.options.as<BalanceOptions>().at(r.budget);
  const BalanceRule rule = balance_rule(options, r.budget, r.site.scale);
  if (rule.endless && rule.rounds == 0)
    throw Error(ErrorCode::kUnsupported,
                "balancekv: endless=true goes with a rate of 1/2 or less, and this budget holds "
                "every row of the context");
  ResolvedSelector selector;
  selector.text = write_options("balancekv", options);
  selector.needs.halves = rule.block;
  if (options.mode == BalanceOptions::Mode::kStream) {
    selector.rule = std::make_shared<BalanceSums>(rule.shape());
    selector.needs.row_weights = selector.needs.roles = true;
    // One that stays empty, the denominator's, and buckets: eight hold values whose norms are up
    // to 2^8 times as large as others.
    selector.needs.stores = 10;
    selector.chooser = [site = r.site, rule](const Context& context) {
      return make_balance_stream(context, site, rule);
    };
    return selector;
  }
  selector.rule = std::make_shared<HalveBlocks>(rule.shape());
  // Behind heavy rows they are in codes before they are final.
  if (!options.heavy.heavy && rule.rounds > 0) selector.needs.body = Needs::Body::kHalved;
  selector.halving = rule.halver();
  return with_heavy(std::move(selector), options.heavy.sizes(r.budget));
}

}  // namespace

Fields BalanceOptions::fields() {
  const bool stream = mode == Mode::kStream;
  return Fields{
             choice<Mode>("mode", mode, {{"block", Mode::kBlock}, {"stream", Mode::kStream}},
                          "block (exactly half of each) or stream (the guaranteed form)"),
             number("rate", rate, {1.0 / (1 << kBalanceRounds), 1},
                    "share of the body's rows that stay: 2^-T")
                 .unset("0.25"),
             rows("budget", budget, "the most rows instead: the largest rate that fits"),
             whole("b", block, {.least = 2, .most = 65536, .multiple = 2},
                   "rows of a block (the paper's t in mode=stream); fewer if a budget asks for it")
                 .unset("256")} +
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
                 .when(stream),
             flag("flush", flush,
                  "at a prompt's end rows that wait in levels are halved too: 2^-T is reached"),
             choice<Decode>("decode", decode,
                            {{"halved", Decode::kHalved}, {"exact", Decode::kExact}},
                            "exact: what comes after a prompt stays until the next one's end, as "
                            "in the authors' code")} +
         heavy.fields("half of what stays, none with mode=stream or rate=1") +
         Fields{flag("paper", paper,
                     "the paper's form where nothing else is given: heavy=0, balance=1, temp=1, "
                     "beta=0, centre=false, walk=exact")
                    .when(paper)};
}

void BalanceOptions::as_in_paper() {
  halving.as_in_paper(0);
  walk = Walk::kRowsExact;
  heavy.none = true;
}

BalanceOptions BalanceOptions::at(const BudgetSite& site) const {
  BalanceOptions o = *this;
  if (heavy.open()) {
    const double stays = rate.value_or(0.25);
    if (mode == Mode::kStream || (!budget && stays == 1)) {
      o.heavy.none = true;
    } else if (budget) {
      divide(o, site);
    } else {
      o.heavy.heavy = Budget{50 * stays, Budget::Unit::kPercent};
      o.rate = std::max(stays / 2, std::ldexp(1.0, -static_cast<int>(kBalanceRounds)));
    }
  }
  const BalanceSizes sizes = sizes_of(o, site);
  o.rate = std::ldexp(1.0, -static_cast<int>(sizes.rounds));
  o.block = sizes.block;
  o.budget.reset();
  o.heavy = o.heavy.at(site);
  return o;
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
  if (stream && budget)
    refuse(ErrorCode::kUnsupported,
           "how many rows mode=stream holds depends on the values, so that it cannot keep to a "
           "budget; give rate, or use mode=block");
  if (stream && heavy.heavy)
    refuse(ErrorCode::kUnsupported,
           "heavy rows count for both sums, which mode=stream keeps apart; use mode=block");
  if (endless && (!stream || (!budget && std::lround(rounds) == 0)))
    refuse(ErrorCode::kUnsupported,
           "endless=true goes with mode=stream and a rate of 1/2 or less; express(heavy=0,s=...) "
           "is the "
           "bounded form of mode=block");
  if (stream && (flush || decode == Decode::kExact))
    refuse(ErrorCode::kUnsupported,
           "flush and decode=exact go with mode=block, whose heads hold equally many rows");
  if (budget && decode == Decode::kExact)
    refuse(ErrorCode::kUnsupported,
           "with decode=exact rows of decoding all stay, which no budget bounds; give rate");
  if (!stream && walk == Walk::kRows)
    refuse(ErrorCode::kUnsupported,
           "mode=block keeps exactly half of a block: walk=pairs or walk=exact; walk=rows is what "
           "mode=stream does");
}

BalanceRule balance_rule(const BalanceOptions& o, const BudgetSite& budget, float scale) {
  BalanceRule rule;
  const BalanceSizes sizes = sizes_of(o, budget);
  rule.rounds = static_cast<uint32_t>(sizes.rounds);
  rule.block = static_cast<uint32_t>(sizes.block);
  rule.weight_exponent = static_cast<float>(o.halving.weight);
  rule.epsilon = static_cast<float>(o.epsilon);
  rule.endless = o.endless;
  rule.flush = o.flush;
  rule.rests = o.decode == BalanceOptions::Decode::kExact;
  if (rule.flush && !halves(sizes.rounds, sizes.block))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("balancekv: flush=true halves a block {} times, and b={} rows are not "
                            "a multiple of {}; use such a b, or a larger rate",
                            sizes.rounds, sizes.block, size_t{1} << sizes.rounds));
  rule.halving = o.halving.rule(scale);
  rule.halving.side = o.side;
  rule.halving.walk = o.walk;
  return rule;
}

SelectorRow balancekv_row() {
  SelectorRow row;
  row.info.name = "balancekv";
  row.info.is_selector = true;
  row.info.summary = "halves blocks of rows by a self-balancing walk";
  row.info.source = "BalanceKV: Streaming Attention Approximation via Discrepancy Theory";
  row.info.size_parameter = "budget";
  row.takes<BalanceOptions>();
  row.state = [](const MethodOptions&, const SelectorSite&) -> StateSize {
    return {sizeof(BalanceTree), 1};
  };
  row.on_gpu = true;
  row.resolve = resolve_balancekv;
  row.more_side_bytes = [](const MethodOptions& o) {
    return o.as<BalanceOptions>().heavy.side_bytes();
  };
  row.default_sink = 4;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 64u; };
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  return row;
}

}  // namespace pith
