// The selector `express`: a rule, KeepCoreset, and the halver that all such selectors share.

#include "methods/selectors/express/express.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "methods/methods.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kLeastTarget = 8;

void check_target(const Budget& asked, size_t rows) {
  if (rows >= kLeastTarget) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("express: s={} makes a coreset of {} rows; it needs at least {}",
                          asked.text(), rows, kLeastTarget));
}

/// s as asked for, rounded down to a power of two. A budget in bytes is a limit, so that the most
/// rows ever held, 1.5 s, must fit.
size_t target_rows(const ExpressOptions& o, const BudgetSite& site) {
  const Budget& asked = o.target;
  size_t rows = o.heavy.open() ? site.rows(asked, "express: s", 3 * kLeastTarget) / 3
                               : o.heavy.others(asked, site, "express: s", kLeastTarget);
  if (!o.heavy.open() && asked.unit == Budget::Unit::kBytes) rows = rows * 2 / 3;
  check_target(asked, rows);
  return std::min(std::bit_floor(rows), size_t{1} << 24);
}

ResolvedSelector resolve_express(const SelectorPlace& r) {
  const auto& given = r.options.as<ExpressOptions>();
  const ExpressOptions options = given.at(r.budget);
  const ExpressRule rule = express_rule(options, r.budget, r.site.scale);
  const std::string asked = given.target.text();
  ResolvedSelector coreset{
      .rule = std::make_shared<KeepCoreset>(rule.shape),
      .needs = {.body = Needs::Body::kCoreset, .row_weights = true, .halves = rule.shape.target},
      .text = write_options("express", options),
      .halving = HalverRule{rule.halving, rule.weight_exponent}};
  // s is the paper's: rows that wait for their halving come on top of it.
  coreset.text += fmt::format(" [{}at most {} rows]",
                              asked == options.target.text() || given.heavy.open()
                                  ? ""
                                  : fmt::format("s={} rounded down to a power of two; ", asked),
                              rule.shape.most(kUnbounded));
  return with_heavy(std::move(coreset), options.heavy.sizes(r.budget));
}

}  // namespace

Fields ExpressOptions::fields() {
  return Fields{rows("s", target,
                     "coreset rows: a power of two (others are rounded down); up to s/2 more wait "
                     "for their halving (bytes count them); without `heavy` the most rows of all"),
                whole("g", inflation, {.most = 10},
                      "inflation: the smallest halving has 4^(g+1) rows")} +
         halving.fields("1") + heavy.fields("what the coreset leaves of s") +
         Fields{flag("paper", paper,
                     "the paper's form where nothing else is given: heavy=0, balance=1, temp=1, "
                     "beta=1, centre=false")
                    .when(paper)};
}

void ExpressOptions::as_in_paper() {
  halving.as_in_paper(1);
  heavy.none = true;
}

ExpressOptions ExpressOptions::at(const BudgetSite& site) const {
  ExpressOptions o = *this;
  const size_t coreset = target_rows(*this, site);
  if (heavy.open())
    o.heavy.heavy =
        Budget::rows(site.rows(target, "express: s", 3 * kLeastTarget) - coreset - coreset / 2);
  o.heavy = o.heavy.at(site);
  o.target = Budget::rows(coreset);
  return o;
}

void ExpressOptions::check(const std::string&) const {
  if (target.unit == Budget::Unit::kRows) check_target(target, static_cast<size_t>(target.value));
}

ExpressRule express_rule(const ExpressOptions& o, const BudgetSite& budget, float scale) {
  ExpressRule rule;
  rule.shape.target = static_cast<uint32_t>(target_rows(o, budget));
  rule.shape.inflation = static_cast<uint32_t>(o.inflation);
  rule.halving = o.halving.rule(scale);
  rule.weight_exponent = static_cast<float>(o.halving.weight);
  return rule;
}

SelectorRow express_row() {
  SelectorRow row;
  row.info.name = "express";
  row.info.is_selector = true;
  row.info.summary = "a weighted coreset of at most 1.5 s rows for a stream of any length";
  row.info.source = "Thinformer Express: Express Language Modeling";
  row.info.size_parameter = "s";
  row.takes<ExpressOptions>();
  row.state = [](const MethodOptions&, const SelectorSite&) -> StateSize {
    return {sizeof(ExpressState), 1};
  };
  row.on_gpu = true;
  row.resolve = resolve_express;
  row.more_side_bytes = [](const MethodOptions& o) {
    return o.as<ExpressOptions>().heavy.side_bytes();
  };
  row.default_sink = 4;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 64u; };
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  return row;
}

}  // namespace pith
