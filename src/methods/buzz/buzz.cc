// buzz: a beehive of local heavy hitters (Zhao et al., "BUZZ: Beehive-structured Sparse KV Cache
// with Segmented Heavy Hitters", arXiv 2410.23079, section 3.3, Algorithms 1 and 2). Rows that
// leave the window are only buffered as "new". When the body holds T rows and another comes, it is
// thinned: of the old rows every s_hat-th stays, s_hat = floor((s + 1) / 2); of each s consecutive
// new rows the one with the most accumulated attention stays. All survivors are then old.
//
// Cost: T row visits every T - a rows, where a ~ w is what an eviction leaves: 1.3 visits for each
// row at the defaults. Attend adds one number per query and row for the mass.

#include "methods/buzz/buzz.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "pith/error.h"

namespace pith {
namespace {

class Buzz final : public Selector {
 public:
  explicit Buzz(const BuzzRule& rule)
      : options_(rule.options),
        threshold_(rule.threshold),
        new_stride_(rule.new_stride()),
        old_stride_(rule.old_stride()) {}

  void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) override {
    const size_t count = bodies.empty() ? 0 : rows[0].count;
    for (size_t done = 0; done < count;) {
      // Sampling is repeated until a row fits (Remark 2); once is enough but for the smallest T.
      while (held_ >= threshold_) evict(bodies);
      const size_t run = std::min(count - done, threshold_ - held_);
      for (size_t h = 0; h < bodies.size(); ++h) {
        bodies[h].store().append(rows[h].slice(done, run));
      }
      held_ += run;
      done += run;
    }
  }
  MassRequest mass(size_t tokens) const override { return {options_.localmax ? tokens : 0, false}; }
  /// log_512 n (equation 7), never below 1: the model was trained without it.
  float score_factor(int64_t seen) const override {
    if (!options_.logn || seen <= 512) return 1;
    return static_cast<float>(std::log(static_cast<double>(seen)) / std::log(512.0));
  }
  size_t rows_after(size_t n) const override { return std::min(n, threshold_); }
  std::string describe() const override {
    BuzzOptions options = options_;
    options.rows = Budget::rows(threshold_);
    return write_options("buzz", options);
  }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<Buzz>(*this); }

 private:
  /// Every head keeps equally many rows, so that one count of the old serves all.
  void evict(std::span<HeadBody> bodies) {
    size_t kept = held_;
    for (HeadBody& body : bodies) kept = evict(body.store());
    held_ = old_ = kept;
  }

  size_t evict(RowStore& store) const {
    std::vector<uint32_t> stay;
    std::vector<double> stands_for;  // rows of the survivor's cell
    const std::span<const float> mass = store.mass();
    const auto keep_cell = [&](size_t first, size_t last, size_t row) {
      stay.push_back(static_cast<uint32_t>(row));
      double sum = 0;
      if (options_.weights)
        for (size_t i = first; i < last; ++i) sum += std::exp(double{store.log_weight(i)});
      stands_for.push_back(sum);
    };
    for (size_t i = 0; i < old_; i += old_stride_) keep_cell(i, std::min(i + old_stride_, old_), i);
    for (size_t i = old_; i < held_; i += new_stride_) {
      const size_t end = std::min(i + new_stride_, held_);
      size_t best = i;
      if (options_.localmax)
        for (size_t r = i + 1; r < end; ++r)
          if (mass[r] > mass[best]) best = r;  // the first wins ties
      keep_cell(i, end, best);
    }
    store.keep(stay);
    if (options_.weights)
      for (size_t i = 0; i < stay.size(); ++i)
        store.set_log_weight(i, static_cast<float>(std::log(stands_for[i])));
    return stay.size();
  }

  BuzzOptions options_;
  size_t threshold_, new_stride_, old_stride_;
  size_t held_ = 0;  ///< rows in each body
  size_t old_ = 0;   ///< of these, survivors of an eviction
};

std::unique_ptr<Selector> make_buzz(const SelectorRequest& r) {
  return std::make_unique<Buzz>(buzz_rule(r.options.as<BuzzOptions>(), r.budget, r.site.window));
}

}  // namespace

Fields BuzzOptions::fields() {
  return {whole("s", stride, {.least = 3, .most = 65536},
                "stride: one of s new rows stays, one of floor((s+1)/2) old ones"),
          pith::rows("T", rows,
                     "rows of the body that trigger an eviction; by Theorem 3.1 from s and the "
                     "window if not given"),
          flag("logn", logn, "multiply scores by log_512 of the tokens seen, at least 1"),
          flag("weights", weights, "a kept row stands for the rows of its cell"),
          flag("swap", swap, "ablation: the strides of old and new rows swapped"),
          flag("localmax", localmax, "false = ablation: every s-th new row instead of the best")};
}

BuzzRule buzz_rule(const BuzzOptions& options, const BudgetSite& budget, size_t window) {
  BuzzRule rule{options};
  const size_t stride = options.stride;
  if (!options.rows && window == 0)
    throw Error(ErrorCode::kInvalidArgument,
                "buzz: the default threshold T is a multiple of the window, which is 0 here; give "
                "T or a window");
  rule.threshold = options.rows ? budget.rows(*options.rows, "buzz: T")
                                : std::max(stride, buzz_threshold(window, stride));
  if (rule.threshold < stride)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("buzz: a threshold of T={} rows is less than the stride s={}; raise T or "
                    "lower s (at least 3)",
                    rule.threshold, stride));
  return rule;
}

size_t buzz_threshold(size_t window, size_t stride) {
  if (stride % 2 == 0) return window * (stride - 1);
  return (window * (stride * stride + 1) + (stride + 1) / 2) / (stride + 1);
}

SelectorRow buzz_row() {
  SelectorRow row;
  row.info.name = "buzz";
  row.info.is_selector = true;
  row.info.summary = "local heavy hitters, thinned further with age";
  row.info.source = "BUZZ (arXiv 2410.23079)";
  row.info.size_parameter = "T";
  row.takes<BuzzOptions>();
  row.make = make_buzz;
  row.default_sink = 4;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 256u; };
  row.side_bytes = sizeof(uint32_t) + 2 * sizeof(float);
  return row;
}

}  // namespace pith
