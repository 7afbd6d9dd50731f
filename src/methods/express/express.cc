// The selector `express`: one schedule for all heads of a layer, heads in parallel.

#include "methods/express/express.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kLeastTarget = 8;

class Express final : public Selector {
 public:
  Express(const Context& context, const SelectorSite& site, const ExpressRule& rule,
          std::string text)
      : context_(context),
        site_(site),
        rule_(rule),
        text_(std::move(text)),
        state_(context.memory, MemoryKind::kMetadata) {
    state_.reserve(1);
    state_.push_back(ExpressState{});
  }

  void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) override {
    if (bodies.empty()) return;
    const ExpressState before = state_[0];
    context_.pool.parallel_for(bodies.size(), [&](size_t h, int) {
      ExpressState state = before;
      const ExpressStream stream(context_, rule_,
                                 Philox(site_.seed, site_.layer, bodies[h].head()));
      stream.take(bodies[h].store(), state, rows[h]);
      if (h == 0) state_[0] = state;  // the same for every head
    });
  }
  size_t rows_after(size_t n) const override { return rule_.shape.most(n); }
  size_t state_bytes() const override { return state_.size() * sizeof(ExpressState); }
  size_t allocated_state_bytes() const override { return state_.capacity_bytes(); }
  std::string describe() const override { return text_; }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<Express>(*this); }

 private:
  Context context_;
  SelectorSite site_;
  ExpressRule rule_;
  std::string text_;
  Array<ExpressState> state_;  // [1]
};

void check_target(const Budget& asked, size_t rows) {
  if (rows >= kLeastTarget) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("express: s={} makes a coreset of {} rows; it needs at least {}",
                          asked.text(), rows, kLeastTarget));
}

/// s as asked for, rounded down to a power of two. A budget in bytes is a limit, so that the most
/// rows ever held, 1.5 s, must fit.
size_t target_rows(const Budget& asked, const BudgetSite& site) {
  size_t rows = site.rows(asked, "express: s");
  if (asked.unit == Budget::Unit::kBytes) rows = rows * 2 / 3;
  check_target(asked, rows);
  return std::min(std::bit_floor(rows), size_t{1} << 24);
}

std::unique_ptr<Selector> make_express(const SelectorRequest& r) {
  auto options = r.options.as<ExpressOptions>();
  const ExpressRule rule = express_rule(options, r.budget, r.site.scale);
  const std::string asked = options.target.text();
  options.target = Budget::rows(rule.shape.target);
  options.heavy = options.heavy.at(r.budget);
  std::string text = write_options("express", options);
  if (asked != options.target.text())
    text += fmt::format(" [s={} rounded down to a power of two]", asked);
  return with_heavy(r, options.heavy,
                    std::make_unique<Express>(r.context, r.site, rule, std::move(text)));
}

}  // namespace

Fields ExpressOptions::fields() {
  return Fields{rows("s", target, "coreset rows: a power of two (others are rounded down)"),
                whole("g", inflation, {.most = 10},
                      "inflation: the smallest halving has 4^(g+1) rows")} +
         halving.fields("1") + heavy.fields();
}

void ExpressOptions::check(const std::string&) const {
  if (target.unit == Budget::Unit::kRows) check_target(target, static_cast<size_t>(target.value));
}

ExpressRule express_rule(const ExpressOptions& o, const BudgetSite& budget, float scale) {
  ExpressRule rule;
  rule.shape.target = static_cast<uint32_t>(target_rows(o.target, budget));
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
  row.make = make_express;
  row.more_side_bytes = [](const MethodOptions& o) {
    return o.as<ExpressOptions>().heavy.side_bytes();
  };
  row.default_sink = 4;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 64u; };
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  return row;
}

}  // namespace pith
