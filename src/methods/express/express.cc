// The selector `express`: one schedule for all heads of a layer, heads in parallel.

#include "methods/express/express.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "compress/heavy.h"
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

/// s as asked for, rounded down to a power of two. A budget in bytes is a limit, so that the most
/// rows ever held, 1.5 s, must fit.
size_t target_rows(const SelectorPlace& r) {
  const Budget asked = Budget::parse(r.parameters.text("s"));
  size_t rows = r.parameters.rows("s", r.budget);
  if (asked.unit == Budget::Unit::kBytes) rows = rows * 2 / 3;
  if (rows < kLeastTarget)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("express: s={} makes a coreset of {} rows; it needs at least {}",
                            r.parameters.text("s"), rows, kLeastTarget));
  return std::min(std::bit_floor(rows), size_t{1} << 24);
}

std::unique_ptr<Selector> make_express(const SelectorRequest& r) {
  const ExpressRule rule = express_rule({r.parameters, r.budget, r.site});
  const bool exact_number = r.parameters.text("s") == fmt::format("{}", rule.shape.target);
  std::string text = fmt::format(
      "express(s={},g={},balance={},centre={},temp={},beta={},weight={})", rule.shape.target,
      rule.shape.inflation, rule.halving.balance, rule.halving.centre, rule.halving.temperature,
      rule.halving.value_constant, rule.weight_exponent);
  if (!exact_number)
    text += fmt::format(" [s={} rounded down to a power of two]", r.parameters.text("s"));
  return with_heavy(r, std::make_unique<Express>(r.context, r.site, rule, std::move(text)));
}

}  // namespace

ExpressRule express_rule(const SelectorPlace& r) {
  ExpressRule rule;
  rule.shape.target = static_cast<uint32_t>(target_rows(r));
  rule.shape.inflation = static_cast<uint32_t>(r.parameters.number("g", 0, 10));
  rule.halving.scale = r.site.scale;
  rule.halving.temperature = static_cast<float>(r.parameters.number("temp", 0, 100));
  rule.halving.value_constant = static_cast<float>(r.parameters.number("beta", 0, 100));
  rule.halving.centre = r.parameters.flag("centre");
  rule.halving.balance = static_cast<float>(r.parameters.number("balance", 0, 100));
  rule.weight_exponent = static_cast<float>(r.parameters.number("weight", 0, 1));
  return rule;
}

SelectorRow express_row() {
  SelectorRow row;
  row.info = {
      "express",
      true,
      "a weighted coreset of at most 1.5 s rows for a stream of any length",
      "Thinformer Express: Express Language Modeling",
      heavy_parameters(
          {{"s", "1024", "coreset rows: a power of two (others are rounded down), %, or MiB"},
           {"g", "1", "inflation: the smallest halving has 4^(g+1) rows"},
           {"balance", "0", "times the paper's threshold; 1 = the paper's, 0 = greedy"},
           {"centre", "true", "subtract the mean key before the kernel"},
           {"temp", "0.25", "kernel temperature: exp(temp <k,k'> scale); 1 = the paper's"},
           {"beta", "0.1", "constant added to <v,v'>, times max|v|^2; 1 = the paper's"},
           {"weight", "1", "a row of weight w counts as w^weight"}}),
      "s"};
  row.make = make_express;
  row.more_side_bytes = heavy_side_bytes;
  row.default_sink = 4;
  row.default_window = [](const Parameters&, const BudgetSite&, bool) { return 64u; };
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  return row;
}

}  // namespace pith
