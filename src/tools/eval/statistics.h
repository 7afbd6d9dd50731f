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

/// The kind of error of all estimates here, as lines of results name it.
inline constexpr const char* kBlockErrors = "blocks";
/// With fewer blocks their own deviation is too uncertain.
inline constexpr size_t kLeastBlocks = 8;

/// Neighbouring predictions depend on one another, and whole pieces differ: as if each token were a
/// draw of its own, errors come out 1.3 to 2.7 times too small. So a draw is a piece, or with fewer
/// than kLeastBlocks pieces an equal part of one. From the predictions of each piece the sizes of
/// the blocks, in order.
std::vector<size_t> error_blocks(std::span<const size_t> pieces);

/// Value at `share` (0 to 1) of sorted values, between neighbours linearly. Not for empty lists.
double percentile(std::span<const double> sorted, double share);

inline constexpr double kPercentiles[] = {0,    0.001, 0.01, 0.05,  0.10, 0.50,
                                          0.90, 0.95,  0.99, 0.999, 1};

/// llama.cpp's table. Errors of ratio and difference use the covariance of the paired values, all
/// of them blocks as the draws (llama.cpp: tokens).
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
/// `pieces`: predictions of each piece; none: all are of one. All zero for no predictions.
PredictionSummary summarise(std::span<const Prediction> predictions,
                            std::span<const size_t> pieces = {});

/// Mean and standard deviation over seeds (0 for one).
struct Spread {
  double mean = 0, deviation = 0;
};
Spread spread(std::span<const double> values);

/// The mean of several seeds on the same tokens. Its error has both sources: the text, which all
/// seeds share (the root mean square of their errors), and the seeds (deviation / sqrt(seeds)).
Estimate over_seeds(std::span<const Estimate> seeds);

/// KL of policy `a` less that of `b` on the same tokens, paired token by token: lists of equal
/// size, one for each seed.
using SeededPredictions = std::vector<std::span<const Prediction>>;
Estimate divergence_above(const SeededPredictions& a, const SeededPredictions& b,
                          std::span<const size_t> pieces = {});

/// Wilson's 95% interval of a share of `count` draws: 16 of 16 are 81% to 100%. Scores between 0
/// and 1 have no wider one. Not for a count of 0.
struct Interval {
  double low = 0, high = 1;
};
Interval wilson(double share, size_t count);

}  // namespace pith
