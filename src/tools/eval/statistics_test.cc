#include "tools/eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pith {
namespace {

TEST(Statistics, OnePredictionByHand) {
  const std::vector<float> base{0, std::log(3.0f)}, logits{std::log(4.0f), 0};
  const Prediction p = score_prediction(base, logits, 0);  // exact: 1/4, 3/4; policy: 4/5, 1/5
  EXPECT_NEAR(p.nll, -std::log(0.8), 1e-6);
  EXPECT_NEAR(p.base_nll, -std::log(0.25), 1e-6);
  EXPECT_NEAR(p.divergence, 0.25 * std::log(0.25 / 0.8) + 0.75 * std::log(0.75 / 0.2), 1e-6);
  EXPECT_FALSE(p.same_top);
}

TEST(Statistics, LogitsMayBeLargeAndShiftedAndTheNullIsZero) {
  std::vector<float> base(1001), shifted(1001);
  for (size_t i = 0; i < base.size(); ++i) {
    base[i] = 500 + 10 * std::sin(static_cast<float>(i));
    shifted[i] = base[i] + 64;
  }
  EXPECT_EQ(score_prediction(base, base, 3).divergence, 0);
  const Prediction p = score_prediction(base, shifted, 3);
  EXPECT_NEAR(p.divergence, 0, 1e-4);
  EXPECT_TRUE(p.same_top);
  EXPECT_NEAR(p.nll, p.base_nll, 1e-4);
}

TEST(Statistics, PercentilesLieBetweenNeighbours) {
  const std::vector<double> sorted{1, 2, 4, 8};
  EXPECT_EQ(percentile(sorted, 0), 1);
  EXPECT_EQ(percentile(sorted, 1), 8);
  EXPECT_NEAR(percentile(sorted, 0.5), 3, 1e-12);
  EXPECT_NEAR(percentile(sorted, 0.75), 5, 1e-12);
  EXPECT_EQ(percentile(std::vector<double>{7}, 0.3), 7);
}

// By hand: nll 1, 2, 3 against 1, 1, 2. Variance of the mean: population variance / (n - 1).
TEST(Statistics, SummaryFollowsLlamaCppsErrors) {
  const std::vector<Prediction> list{{1, 1, 0, true}, {2, 1, 0.5f, false}, {3, 2, 0.25f, true}};
  const PredictionSummary s = summarise(list);
  const double var = (2.0 / 3) / 2, base_var = (2.0 / 9) / 2, cov = (1.0 / 3) / 2;
  EXPECT_EQ(s.count, 3u);
  EXPECT_NEAR(s.perplexity.mean, std::exp(2.0), 1e-9);
  EXPECT_NEAR(s.perplexity.error, std::exp(2.0) * std::sqrt(var), 1e-9);
  EXPECT_NEAR(s.base_perplexity.mean, std::exp(4.0 / 3), 1e-9);
  EXPECT_NEAR(s.ln_ratio.mean, 2.0 / 3, 1e-9);
  EXPECT_NEAR(s.ln_ratio.error, std::sqrt(var + base_var - 2 * cov), 1e-9);
  EXPECT_NEAR(s.ln_correlation, cov / std::sqrt(var * base_var), 1e-9);
  EXPECT_NEAR(s.divergence.mean, 0.25, 1e-9);
  EXPECT_NEAR(s.divergence_percentiles[5], 0.25, 1e-9);
  EXPECT_NEAR(s.same_top.mean, 2.0 / 3, 1e-9);
  const double d1 = std::exp(-2.0) - std::exp(-1.0), d2 = std::exp(-3.0) - std::exp(-2.0);
  EXPECT_NEAR(s.delta_p.mean, (d1 + d2) / 3, 1e-7);
  EXPECT_NEAR(s.rms_delta_p.mean, std::sqrt((d1 * d1 + d2 * d2) / 3), 1e-7);
  EXPECT_EQ(summarise({}).count, 0u);
}

TEST(Statistics, SpreadIsTheSampleDeviation) {
  const std::vector<double> values{1, 2, 6};
  EXPECT_NEAR(spread(values).mean, 3, 1e-12);
  EXPECT_NEAR(spread(values).deviation, std::sqrt(14.0 / 2), 1e-12);
  EXPECT_EQ(spread(std::vector<double>{5}).deviation, 0);
}

}  // namespace
}  // namespace pith
