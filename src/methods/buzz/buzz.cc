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
  explicit Buzz(const BuzzOptions& options)
      : options_(options), new_stride_(options.new_stride()), old_stride_(options.old_stride()) {}

  void ingest(std::span<HeadBody> bodies, std::span<const NewRows> rows) override {
    const size_t count = bodies.empty() ? 0 : rows[0].count;
    for (size_t done = 0; done < count;) {
      // Sampling is repeated until a row fits (Remark 2); once is enough but for the smallest T.
      while (held_ >= options_.threshold) evict(bodies);
      const size_t run = std::min(count - done, options_.threshold - held_);
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
  size_t rows_after(size_t n) const override { return std::min(n, options_.threshold); }
  std::string describe() const override {
    return fmt::format("buzz(s={},T={},logn={},weights={},swap={},localmax={})", options_.stride,
                       options_.threshold, options_.logn, options_.weights, options_.swap,
                       options_.localmax);
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
  size_t new_stride_, old_stride_;
  size_t held_ = 0;  ///< rows in each body
  size_t old_ = 0;   ///< of these, survivors of an eviction
};

std::unique_ptr<Selector> make_buzz(const SelectorRequest& r) {
  return std::make_unique<Buzz>(buzz_options({r.parameters, r.budget, r.site}));
}

}  // namespace

BuzzOptions buzz_options(const SelectorPlace& r) {
  BuzzOptions o;
  o.stride = r.parameters.count("s", 3);
  if (r.parameters.text("T").empty()) {
    if (r.site.window == 0)
      throw Error(
          ErrorCode::kInvalidArgument,
          "buzz: the default threshold T is a multiple of the window, which is 0 here; give "
          "T or a window");
    o.threshold = std::max(o.stride, buzz_threshold(r.site.window, o.stride));
  } else {
    o.threshold = r.parameters.rows("T", r.budget);
  }
  if (o.threshold < o.stride)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("buzz: a threshold of T={} rows is less than the stride s={}; raise T or "
                    "lower s (at least 3)",
                    o.threshold, o.stride));
  o.logn = r.parameters.flag("logn");
  o.weights = r.parameters.flag("weights");
  o.swap = r.parameters.flag("swap");
  o.localmax = r.parameters.flag("localmax");
  return o;
}

size_t buzz_threshold(size_t window, size_t stride) {
  if (stride % 2 == 0) return window * (stride - 1);
  return (window * (stride * stride + 1) + (stride + 1) / 2) / (stride + 1);
}

SelectorRow buzz_row() {
  SelectorRow row;
  row.info = {"buzz",
              true,
              "local heavy hitters, thinned further with age",
              "BUZZ (arXiv 2410.23079)",
              {{"s", "5", "stride: one of s new rows stays, one of floor((s+1)/2) old ones"},
               {"T", "",
                "rows of the body that trigger an eviction; by Theorem 3.1 from s and the "
                "window if not given; a number, per cent of the context, or MiB"},
               {"logn", "false", "multiply scores by log_512 of the tokens seen, at least 1"},
               {"weights", "false", "a kept row stands for the rows of its cell"},
               {"swap", "false", "ablation: the strides of old and new rows swapped"},
               {"localmax", "true", "false = ablation: every s-th new row instead of the best"}},
              "T"};
  row.make = make_buzz;
  row.default_sink = 4;
  row.default_window = [](const Parameters&, const BudgetSite&, bool) { return 256u; };
  row.side_bytes = sizeof(uint32_t) + 2 * sizeof(float);
  return row;
}

}  // namespace pith
