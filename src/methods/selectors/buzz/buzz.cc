// buzz: a beehive of local heavy hitters (Zhao et al., "BUZZ: Beehive-structured Sparse KV Cache
// with Segmented Heavy Hitters", arXiv 2410.23079, section 3.3, Algorithms 1 and 2). Rows that
// leave the window are only buffered as "new". When the body holds T rows and another comes, it is
// thinned: of the old rows every s_hat-th stays, s_hat = floor((s + 1) / 2); of each s consecutive
// new rows the one with the most accumulated attention stays. All survivors are then old.
//
// Cost: T row visits every T - a rows, where a ~ w is what an eviction leaves: 1.3 visits for each
// row at the defaults. Attend adds one number per query and row for the mass.

#include "methods/selectors/buzz/buzz.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "methods/methods.h"
#include "pith/error.h"
#include "select/key_directions.h"

namespace pith {
namespace {

/// The first of the largest numbers in [first, end) but for `without`; `end` if there is none.
template <class T>
size_t first_of_largest(std::span<const T> numbers, size_t first, size_t end, size_t without) {
  size_t best = end;
  for (size_t i = first; i < std::min(end, numbers.size()); ++i)
    if (i != without && (best == end || numbers[i] > numbers[best])) best = i;
  return best;
}

class Buzz final : public Chooser {
 public:
  Buzz(const BuzzRule& rule, size_t heads)
      : options_(rule.options),
        new_stride_(rule.new_stride()),
        old_stride_(rule.old_stride()),
        stands_for_(heads) {}

  Chosen choose(const Step& step, size_t h, HeadBody& body, const NewRows& /*fresh*/) override {
    RowStore& store = body.store();
    Chosen chosen;
    stands_for_[h].clear();
    const std::span<const float> mass = store.mass();
    const auto keep_cell = [&](size_t first, size_t last, std::initializer_list<size_t> kept) {
      for (size_t row : kept) chosen.held.push_back(static_cast<uint32_t>(row));
      if (!options_.weights) return;
      double sum = 0;
      for (size_t i = first; i < last; ++i) sum += std::exp(double{store.log_weight(i)});
      stands_for_[h].resize(stands_for_[h].size() + kept.size(),
                            sum / static_cast<double>(kept.size()));
    };
    const size_t old = step.size > 0 ? 0 : step.old;
    const size_t stride = step.size > 0 ? step.size : new_stride_;
    const size_t first = step.first, last = step.held - step.behind;
    std::vector<double> unlike(options_.by_key ? step.held : 0);
    if (options_.by_key) score_directions(unlike, store);
    const auto keep_all = [&](size_t begin, size_t end) {
      for (size_t i = begin; i < end; ++i) keep_cell(i, i + 1, {i});
    };
    keep_all(0, first);
    for (size_t i = first; i < std::min(old, last); i += old_stride_)
      keep_cell(i, std::min({i + old_stride_, old, last}), {i});
    for (size_t i = std::max(first, old); i < last; i += stride) {
      const size_t end = std::min(i + stride, last);
      const size_t best = options_.localmax ? first_of_largest(mass, i, end, end) : i;
      const size_t other = first_of_largest<double>(unlike, i, end, best);
      if (other == end)
        keep_cell(i, end, {best});
      else
        keep_cell(i, end, {std::min(best, other), std::max(best, other)});
    }
    keep_all(last, step.held);
    return chosen;
  }
  void kept(const Step& /*step*/, std::span<HeadBody> bodies) override {
    for (size_t h = 0; h < bodies.size(); ++h)
      for (size_t i = 0; i < stands_for_[h].size(); ++i)
        bodies[h].store().set_log_weight(i, static_cast<float>(std::log(stands_for_[h][i])));
  }
  std::unique_ptr<Chooser> clone() const override { return std::make_unique<Buzz>(*this); }

 private:
  BuzzOptions options_;
  size_t new_stride_, old_stride_;
  std::vector<std::vector<double>> stands_for_;  // [heads][kept] rows of a survivor's cell
};

ResolvedSelector resolve_buzz(const SelectorPlace& r) {
  const BuzzRule rule = buzz_rule(r.options.as<BuzzOptions>(), r.budget, r.site.window);
  BuzzOptions options = rule.options;
  options.rows = Budget::rows(rule.threshold);
  return {.rule = std::make_shared<KeepCells>(rule.cells(), options.localmax, options.logn),
          .needs = {.mass = options.localmax,
                    .row_weights = options.weights,
                    .gathered = options.whole},
          .text = write_options("buzz", options),
          .chooser = [rule, heads = r.site.heads](const Context&) {
            return std::make_unique<Buzz>(rule, heads);
          }};
}

}  // namespace

Fields BuzzOptions::fields() {
  return {pith::whole("s", stride, {.least = 3, .most = 65536},
                      "stride: one of s new rows stays, one of floor((s+1)/2) old ones"),
          pith::rows("T", rows,
                     "rows of the body that trigger an eviction; by Theorem 3.1 from s and the "
                     "window if not given"),
          flag("logn", logn, "multiply scores by log_512 of the tokens seen, at least 1"),
          flag("weights", weights, "a kept row stands for the rows of its cell"),
          flag("by_key", by_key,
               "a hive of new rows keeps two: also the one whose key is most unlike all others"),
          flag("whole", whole,
               "prompt=once: one pass over the whole prompt, in hives so long that 3/4 of T stay"),
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
  rule.threshold = options.rows ? budget.rows(*options.rows, "buzz: T", stride)
                                : std::max(stride, buzz_threshold(window, stride));
  if (rule.threshold < stride)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("buzz: a threshold of T={} rows is less than the stride s={}; raise T or "
                    "lower s (at least 3)",
                    rule.threshold, stride));
  if (rule.new_stride() <= rule.each())
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("buzz: by_key=true keeps two rows of a hive, and swap=true makes hives "
                            "of {}; raise s to at least 5, or leave one of the two out",
                            rule.new_stride()));
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
  row.on_gpu = true;
  row.resolve = resolve_buzz;
  row.default_sink = 4;
  row.default_window = [](const MethodOptions&, const BudgetSite&, bool) { return 256u; };
  row.side_bytes = sizeof(uint32_t) + 2 * sizeof(float);
  return row;
}

}  // namespace pith
