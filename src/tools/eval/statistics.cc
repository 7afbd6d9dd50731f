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

// Covariance of the means of two paired lists.
double covariance(std::span<const double> a, std::span<const double> b) {
  if (a.size() < 2) return 0;
  const double ma = mean_of(a), mb = mean_of(b);
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - ma) * (b[i] - mb);
  const auto n = static_cast<double>(a.size());
  return sum / n / (n - 1);
}

Estimate estimate(std::span<const double> values) {
  return {mean_of(values), std::sqrt(covariance(values, values))};
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

void fill_perplexity(PredictionSummary& s, std::span<const double> nll,
                     std::span<const double> base) {
  const double var = covariance(nll, nll), base_var = covariance(base, base);
  const double cov = covariance(nll, base);
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

PredictionSummary summarise(std::span<const Prediction> predictions) {
  PredictionSummary s;
  s.count = predictions.size();
  if (s.count == 0) return s;
  const auto nll = column(predictions, [](const Prediction& p) { return p.nll; });
  const auto base = column(predictions, [](const Prediction& p) { return p.base_nll; });
  fill_perplexity(s, nll, base);
  const auto divergence = column(predictions, [](const Prediction& p) { return p.divergence; });
  s.divergence = estimate(divergence);
  s.divergence_percentiles = percentiles(divergence);
  const auto delta = column(predictions, [](const Prediction& p) {
    return std::exp(-double{p.nll}) - std::exp(-double{p.base_nll});
  });
  s.delta_p = estimate(delta);
  s.delta_p_percentiles = percentiles(delta);
  std::vector<double> squares;
  for (double d : delta) squares.push_back(d * d);
  const Estimate square = estimate(squares);
  const double rms = std::sqrt(square.mean);
  s.rms_delta_p = {rms, rms > 0 ? 0.5 * square.error / rms : 0};
  s.same_top = estimate(column(predictions, [](const Prediction& p) { return p.same_top; }));
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

}  // namespace pith
