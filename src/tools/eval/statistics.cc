#include "tools/eval/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace pith {
namespace {

// ln sum exp, with the maximum taken out.
double log_sum(std::span<const float> logits, float top) {
  double sum = 0;
  for (float x : logits) sum += std::exp(x - top);
  return static_cast<double>(top) + std::log(sum);
}

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Covariances of means, with blocks as the draws.
class Blocks {
 public:
  explicit Blocks(std::vector<size_t> sizes) : sizes_(std::move(sizes)) {}

  /// Of two paired lists. Blocks of one value each: sum of products / (n (n - 1)).
  double covariance(std::span<const double> a, std::span<const double> b) const {
    if (sizes_.size() < 2) return 0;
    const double ma = mean_of(a), mb = mean_of(b);
    double sum = 0;
    size_t i = 0;
    for (const size_t size : sizes_) {
      double da = 0, db = 0;
      for (const size_t end = i + size; i < end; ++i) da += a[i] - ma, db += b[i] - mb;
      sum += da * db;
    }
    const auto n = static_cast<double>(a.size()), blocks = static_cast<double>(sizes_.size());
    return sum / n / n * blocks / (blocks - 1);
  }
  Estimate estimate(std::span<const double> values) const {
    return {mean_of(values), std::sqrt(covariance(values, values))};
  }

 private:
  std::vector<size_t> sizes_;
};

Blocks blocks_of(size_t count, std::span<const size_t> pieces) {
  return Blocks(error_blocks(pieces.empty() ? std::span(&count, 1) : pieces));
}

std::vector<double> percentiles(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  std::vector<double> out;
  for (double share : kPercentiles) out.push_back(percentile(values, share));
  return out;
}

template <class F>
std::vector<double> column(std::span<const Prediction> predictions, F&& value) {
  std::vector<double> out;
  out.reserve(predictions.size());
  for (const Prediction& p : predictions) out.push_back(value(p));
  return out;
}

double divergence_of(const Prediction& p) { return double{p.divergence}; }

void fill_perplexity(PredictionSummary& s, const Blocks& blocks, std::span<const double> nll,
                     std::span<const double> base) {
  const double var = blocks.covariance(nll, nll), base_var = blocks.covariance(base, base);
  const double cov = blocks.covariance(nll, base);
  const double ppl = std::exp(mean_of(nll)), base_ppl = std::exp(mean_of(base));
  s.perplexity = {ppl, ppl * std::sqrt(var)};
  s.base_perplexity = {base_ppl, base_ppl * std::sqrt(base_var)};
  s.ln_correlation = var > 0 && base_var > 0 ? cov / std::sqrt(var * base_var) : 1;
  s.ln_ratio = {mean_of(nll) - mean_of(base), std::sqrt(std::max(0.0, var + base_var - 2 * cov))};
  s.ratio = {std::exp(s.ln_ratio.mean), std::exp(s.ln_ratio.mean) * s.ln_ratio.error};
  const double spread2 =
      ppl * ppl * var + base_ppl * base_ppl * base_var - 2 * ppl * base_ppl * cov;
  s.difference = {ppl - base_ppl, std::sqrt(std::max(0.0, spread2))};
}

}  // namespace

Prediction score_prediction(std::span<const float> base, std::span<const float> logits,
                            int32_t target) {
  const auto base_top = std::max_element(base.begin(), base.end());
  const auto top = std::max_element(logits.begin(), logits.end());
  const double base_sum = log_sum(base, *base_top), sum = log_sum(logits, *top);
  const double shift = sum - base_sum;
  double divergence = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    const float p = std::exp(base[i] - static_cast<float>(base_sum));
    divergence += p * (static_cast<double>(base[i]) - static_cast<double>(logits[i]) + shift);
  }
  const auto at = static_cast<size_t>(target);
  return {static_cast<float>(sum - static_cast<double>(logits[at])),
          static_cast<float>(base_sum - static_cast<double>(base[at])),
          static_cast<float>(divergence), base_top - base.begin() == top - logits.begin()};
}

double percentile(std::span<const double> sorted, double share) {
  const double at = std::clamp(share, 0.0, 1.0) * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double rest = at - static_cast<double>(below);
  return (1 - rest) * sorted[below] + rest * sorted[above];
}

std::vector<size_t> error_blocks(std::span<const size_t> pieces) {
  const auto filled =
      static_cast<size_t>(std::ranges::count_if(pieces, [](size_t size) { return size > 0; }));
  std::vector<size_t> blocks;
  for (const size_t size : pieces) {
    const size_t parts = std::min(size, (kLeastBlocks + filled - 1) / std::max<size_t>(filled, 1));
    for (size_t i = 0; i < parts; ++i) blocks.push_back(size * (i + 1) / parts - size * i / parts);
  }
  return blocks;
}

PredictionSummary summarise(std::span<const Prediction> predictions,
                            std::span<const size_t> pieces) {
  PredictionSummary s;
  s.count = predictions.size();
  if (s.count == 0) return s;
  const Blocks blocks = blocks_of(s.count, pieces);
  const auto nll = column(predictions, [](const Prediction& p) { return p.nll; });
  const auto base = column(predictions, [](const Prediction& p) { return p.base_nll; });
  fill_perplexity(s, blocks, nll, base);
  const auto divergence = column(predictions, divergence_of);
  s.divergence = blocks.estimate(divergence);
  s.divergence_percentiles = percentiles(divergence);
  const auto delta = column(predictions, [](const Prediction& p) {
    return std::exp(-double{p.nll}) - std::exp(-double{p.base_nll});
  });
  s.delta_p = blocks.estimate(delta);
  s.delta_p_percentiles = percentiles(delta);
  std::vector<double> squares;
  for (double d : delta) squares.push_back(d * d);
  const Estimate square = blocks.estimate(squares);
  const double rms = std::sqrt(square.mean);
  s.rms_delta_p = {rms, rms > 0 ? 0.5 * square.error / rms : 0};
  s.same_top = blocks.estimate(column(predictions, [](const Prediction& p) { return p.same_top; }));
  return s;
}

Spread spread(std::span<const double> values) {
  if (values.empty()) return {};
  const double mean = mean_of(values);
  double sum = 0;
  for (double v : values) sum += (v - mean) * (v - mean);
  const auto n = static_cast<double>(values.size());
  return {mean, n > 1 ? std::sqrt(sum / (n - 1)) : 0};
}

Estimate over_seeds(std::span<const Estimate> seeds) {
  std::vector<double> means, squares;
  for (const Estimate& e : seeds) means.push_back(e.mean), squares.push_back(e.error * e.error);
  if (seeds.empty()) return {};
  const Spread all = spread(means);
  return {all.mean, std::sqrt(mean_of(squares) +
                              all.deviation * all.deviation / static_cast<double>(seeds.size()))};
}

Estimate divergence_above(const SeededPredictions& a, const SeededPredictions& b,
                          std::span<const size_t> pieces) {
  if (a.empty() || b.empty() || a[0].empty()) return {};
  std::vector<double> difference(a[0].size());
  double seeds_variance = 0;
  const auto add = [&](const SeededPredictions& seeds, double sign) {
    const auto count = static_cast<double>(seeds.size());
    std::vector<double> means;
    for (const auto& predictions : seeds) {
      const auto values = column(predictions, divergence_of);
      for (size_t i = 0; i < values.size(); ++i) difference[i] += sign / count * values[i];
      means.push_back(mean_of(values));
    }
    const double deviation = spread(means).deviation;
    seeds_variance += deviation * deviation / count;
  };
  add(a, 1), add(b, -1);
  const Estimate text = blocks_of(difference.size(), pieces).estimate(difference);
  return {text.mean, std::sqrt(text.error * text.error + seeds_variance)};
}

Interval wilson(double share, size_t count) {
  constexpr double z = 1.959964;
  const auto n = static_cast<double>(count);
  share = std::clamp(share, 0.0, 1.0);  // files may say anything
  const double centre = (share + z * z / (2 * n)) / (1 + z * z / n);
  const double half =
      z / (1 + z * z / n) * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n));
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

}  // namespace pith
