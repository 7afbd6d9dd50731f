#pragma once
// How far predictions are from those of the exact cache: llama.cpp's perplexity and KL figures
// (tools/perplexity, commit 050fc7f), but from f32 logits of this process, without the 16-bit file
// whose clamp gives exact against exact a divergence above 0.
// Cost: 2 V exponentials a prediction.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace pith {

/// One scored prediction under a policy (`nll`) and under the exact cache (`base_nll`), in nats.
struct Prediction {
  float nll = 0, base_nll = 0;
  float divergence = 0;   ///< KL(exact || policy) over the whole vocabulary
  bool same_top = false;  ///< both have the same likeliest token
  bool operator==(const Prediction&) const = default;
};

/// Scores the prediction of `target` from logits [V] and the exact cache's `base` [V].
Prediction score_prediction(std::span<const float> base, std::span<const float> logits,
                            int32_t target);

/// A mean and its standard error.
struct Estimate {
  double mean = 0, error = 0;
};

/// Value at `share` (0 to 1) of sorted values, between neighbours linearly. Not for empty lists.
double percentile(std::span<const double> sorted, double share);

inline constexpr double kPercentiles[] = {0,    0.001, 0.01, 0.05,  0.10, 0.50,
                                          0.90, 0.95,  0.99, 0.999, 1};

/// llama.cpp's table. Errors of ratio and difference use the covariance of the paired values.
struct PredictionSummary {
  size_t count = 0;
  Estimate perplexity, base_perplexity;
  double ln_correlation = 0;  ///< of nll with base_nll
  Estimate ln_ratio, ratio, difference;
  Estimate divergence;
  std::vector<double> divergence_percentiles;  // [kPercentiles]
  Estimate delta_p, rms_delta_p;               ///< probability of the target: policy - exact
  std::vector<double> delta_p_percentiles;     // [kPercentiles]
  Estimate same_top;                           ///< share, 0 to 1
};
/// All zero for no predictions.
PredictionSummary summarise(std::span<const Prediction> predictions);

/// Mean and standard deviation over seeds (0 for one).
struct Spread {
  double mean = 0, deviation = 0;
};
Spread spread(std::span<const double> values);

}  // namespace pith
