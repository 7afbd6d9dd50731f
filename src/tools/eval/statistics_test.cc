#include "tools/eval/statistics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

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

// By hand: nll 1, 2, 3 against 1, 1, 2. Variance of the mean: population variance / (n - 1), since
// with fewer than eight predictions each is a block.
TEST(Statistics, FewPredictionsHaveLlamaCppsErrors) {
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

TEST(Statistics, BlocksArePiecesOrEqualPartsOfFewPieces) {
  const auto blocks = [](std::vector<size_t> pieces) { return error_blocks(pieces); };
  EXPECT_EQ(blocks({}), std::vector<size_t>());
  EXPECT_EQ(blocks({3}), (std::vector<size_t>{1, 1, 1}));
  EXPECT_EQ(blocks({256}), std::vector<size_t>(8, 32));
  EXPECT_EQ(blocks({20, 20, 20}), (std::vector<size_t>{6, 7, 7, 6, 7, 7, 6, 7, 7}));
  EXPECT_EQ(blocks({0, 16}), std::vector<size_t>(8, 2));
  EXPECT_EQ(blocks({5, 6, 7, 8, 9, 10, 11, 12, 13}),
            (std::vector<size_t>{5, 6, 7, 8, 9, 10, 11, 12, 13}));
}

std::vector<Prediction> with_divergence(const std::vector<double>& values) {
  std::vector<Prediction> out;
  for (double v : values) out.push_back({1, 1, static_cast<float>(v), true});
  return out;
}

/// x_t = phi x_(t-1) + a draw of variance 1 - phi^2: variance 1, and the variance of a mean of n is
/// (1 + phi) / (1 - phi) / n for n much larger than 1 / (1 - phi).
std::vector<double> autocorrelated(std::mt19937& random, double phi, size_t n) {
  std::normal_distribution<double> draw;
  std::vector<double> x(n);
  double state = draw(random);
  for (double& value : x) value = state = phi * state + std::sqrt(1 - phi * phi) * draw(random);
  return x;
}

// phi = 0.8: the true error of a mean is 3 times that of independent draws. 400 series of 2048 with
// blocks of 256: their mean variance must be the true one, and the means must spread by it.
TEST(Statistics, BlocksSeeTheAutocorrelationOfNeighbours) {
  constexpr double kPhi = 0.8;
  constexpr size_t kSeries = 400, kSize = 2048;
  std::mt19937 random(7);
  double variance = 0, alone = 0;
  std::vector<double> means;
  for (size_t i = 0; i < kSeries; ++i) {
    const auto list = with_divergence(autocorrelated(random, kPhi, kSize));
    const Estimate e = summarise(list).divergence;
    variance += e.error * e.error / kSeries, means.push_back(e.mean);
    alone += summarise(list, std::vector<size_t>(kSize, 1)).divergence.error / kSeries;
  }
  const double truth = (1 + kPhi) / (1 - kPhi) / kSize;
  // 400 estimates with 7 degrees of freedom: 2.7% of noise; blocks of finite size miss 1 to 2%.
  EXPECT_NEAR(variance / truth, 1, 0.10);
  EXPECT_NEAR(spread(means).deviation / std::sqrt(truth), 1, 0.15);
  EXPECT_NEAR(alone * 3 / std::sqrt(truth), 1, 0.05);
}

// Pieces that differ: eight pieces of one value each say nothing of the text but eight times.
TEST(Statistics, PiecesThatDifferAreTheDraws) {
  std::vector<double> values;
  for (int piece = 0; piece < 8; ++piece) values.insert(values.end(), 64, piece % 2);
  const Estimate e = summarise(with_divergence(values), std::vector<size_t>(8, 64)).divergence;
  EXPECT_NEAR(e.mean, 0.5, 1e-12);
  EXPECT_NEAR(e.error, std::sqrt(0.25 / 7), 1e-12);
}

TEST(Statistics, SeedsAddTheirVarianceToTheTexts) {
  EXPECT_EQ(over_seeds({}).error, 0);
  const std::vector<Estimate> one{{3, 0.5}}, two{{1, 3}, {3, 4}};
  EXPECT_EQ(over_seeds(one).mean, 3);
  EXPECT_EQ(over_seeds(one).error, 0.5);
  EXPECT_NEAR(over_seeds(two).mean, 2, 1e-12);
  EXPECT_NEAR(over_seeds(two).error, std::sqrt(25.0 / 2 + 1), 1e-12);
}

// A difference of 0.1 at every token has no error, however much both vary; the seeds' counts.
TEST(Statistics, DifferencesAreOfPairedTokens) {
  std::mt19937 random(8);
  const auto base = autocorrelated(random, 0.5, 256);
  std::vector<double> more, most;
  for (double x : base) more.push_back(x + 0.125), most.push_back(x + 0.375);
  const auto a = with_divergence(base), b = with_divergence(more), c = with_divergence(most);
  const Estimate paired = divergence_above({b}, {a});
  EXPECT_NEAR(paired.mean, 0.125, 1e-6);
  EXPECT_NEAR(paired.error, 0, 1e-6);
  const Estimate seeds = divergence_above({b, c}, {a});
  EXPECT_NEAR(seeds.mean, 0.25, 1e-6);
  EXPECT_NEAR(seeds.error, 0.125, 1e-6);  // deviation sqrt(2) / 8, of two
}

TEST(Statistics, WilsonsIntervalIsThePublishedOne) {
  // R: prop.test(x, n, correct = FALSE)
  EXPECT_NEAR(wilson(1, 16).low, 0.8064, 1e-4);
  EXPECT_NEAR(wilson(1, 16).high, 1, 1e-12);
  EXPECT_NEAR(wilson(0.5, 10).low, 0.2366, 1e-4);
  EXPECT_NEAR(wilson(0.5, 10).high, 0.7634, 1e-4);
  EXPECT_EQ(wilson(0, 4).low, 0);
}

}  // namespace
}  // namespace pith
