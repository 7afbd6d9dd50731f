// pyramidkv: SnapKV's score with a budget that falls from the first layer to the last (Cai et al.,
// "PyramidKV", 2024, section 3.2). With K = budget + window rows a layer on average, the last layer
// gets K / beta and the first 2 K minus that, linear between, in kvpress's arithmetic: no layer
// gets more than there are tokens before the window (what it cannot use goes to the last layers),
// and a pyramid whose tip is smaller than the window is given up for K everywhere. Cost: SnapKV's.

#include <algorithm>
#include <cmath>

#include "methods/scores/scores.h"
#include "methods/scores/snapkv.h"

namespace pith {
namespace {

class PyramidKv final : public SnapKv {
 public:
  PyramidKv(const SelectorRequest& r, const PyramidKvOptions& options)
      : SnapKv(r, options), options_(options), budget_{sizes(), site(), options.beta} {}

  std::string describe() const override { return snapkv_text("pyramidkv", options_); }
  std::unique_ptr<Selector> clone() const override { return std::make_unique<PyramidKv>(*this); }

 private:
  size_t budget_at(size_t n) const override { return budget_.at(tokens_at(n)); }

  PyramidKvOptions options_;
  PyramidBudget budget_;
};

}  // namespace

size_t PyramidBudget::at(size_t seen) const {
  const auto window = static_cast<double>(site.window), tokens = static_cast<double>(seen);
  const double mean = static_cast<double>(sizes.budget) + window;
  double least = mean / beta, most = 2 * mean - least;
  if (most >= tokens - window) {
    most = tokens - window;
    least = 2 * mean - most;
  }
  if (site.layers < 2 || !(tokens >= most && most >= least && least >= window)) return sizes.budget;
  const double step = (most - least) / static_cast<double>(site.layers - 1);
  // nearbyint rounds halves to even, as Python does.
  const double rows = std::nearbyint(most - static_cast<double>(site.layer) * step);
  return static_cast<size_t>(rows - std::min(rows, window));
}

Fields PyramidKvOptions::fields() {
  return SnapKvOptions::fields() +
         Fields{number("beta", beta, {1, 1e6}, "mean budget over the last layer's; 1 = SnapKV")};
}

SelectorRow pyramidkv_row() {
  SelectorRow row = score_row("pyramidkv", "SnapKV with a budget that falls over the layers",
                              "Cai et al. 2024 (arXiv 2406.02069), as in kvpress");
  row.takes<PyramidKvOptions>();
  row.default_sink = 0;
  row.side_bytes = sizeof(uint32_t) + sizeof(float);
  row.make = [](const SelectorRequest& r) -> std::unique_ptr<Selector> {
    return std::make_unique<PyramidKv>(r, r.options.as<PyramidKvOptions>());
  };
  return row;
}

}  // namespace pith
