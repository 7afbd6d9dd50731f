// Merged tiles against sums over the rows themselves.

#include "probe/probe_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace pith {
namespace {

constexpr size_t kDim = 16, kGroup = 3;

struct Rows {
  std::vector<float> scores;  // [group, rows]
  std::vector<float> values;  // [rows, D]
  size_t count;
};

// A device's sums over rows [first, last).
std::vector<float> tile(const Rows& rows, size_t first, size_t last) {
  std::vector<float> sums(kGroup * TileSums::numbers(kDim));
  for (size_t j = 0; j < kGroup; ++j) {
    float* out = sums.data() + j * TileSums::numbers(kDim);
    const float* scores = rows.scores.data() + j * rows.count;
    out[0] = *std::max_element(scores + first, scores + last);
    for (size_t i = first; i < last; ++i) {
      const float p = std::exp(scores[i] - out[0]);
      out[1] += p, out[2] += p * p;
      for (size_t c = 0; c < kDim; ++c) {
        const float v = rows.values[i * kDim + c];
        out[3] += p * p * v * v, out[4 + c] += p * v, out[4 + kDim + c] += p * p * v;
      }
    }
  }
  return sums;
}

TEST(ProbeTiles, MergeToTheSumsOverTheirRows) {
  std::mt19937 random(3);
  std::normal_distribution<float> draw;
  Rows rows{std::vector<float>(kGroup * 100), std::vector<float>(100 * kDim), 100};
  for (float& x : rows.scores) x = 4 * draw(random);
  for (float& x : rows.values) x = 1 + draw(random);
  // Rows 0 to 39 are dense, 40 to 69 span 0's, the others span 1's.
  const std::vector<size_t> ends{0, 7, 40, 41, 70, 100};
  const std::vector<int32_t> spans{ProbedHead::kDense, ProbedHead::kDense, 0, 0, 1};
  std::vector<std::vector<float>> sums;
  for (size_t t = 0; t + 1 < ends.size(); ++t) sums.push_back(tile(rows, ends[t], ends[t + 1]));
  HeadTiles tiles(kGroup, kDim);
  for (size_t t = 0; t < sums.size(); ++t) tiles.add(sums[t].data(), spans[t]);
  ProbedHead head;
  tiles.answer(head);

  std::vector<float> o(kGroup * kDim);
  for (float& x : o) x = draw(random);
  std::vector<double> log_sum;
  for (size_t j = 0; j < kGroup; ++j) log_sum.push_back(head.log_sum[j] + 0.3);
  const auto coded = tiles.coded({30, 30});
  ASSERT_EQ(coded->spans(), 2u);
  EXPECT_EQ(coded->rows(1), 30u);
  for (size_t j = 0; j < kGroup; ++j) {
    const float* scores = rows.scores.data() + j * 100;
    double z = 0;
    std::vector<double> n(kDim);
    for (size_t i = 0; i < 100; ++i) {
      z += std::exp(double{scores[i]});
      for (size_t c = 0; c < kDim; ++c)
        n[c] += std::exp(double{scores[i]}) * rows.values[i * kDim + c];
    }
    EXPECT_NEAR(head.log_sum[j], std::log(z), 1e-5);
    for (size_t c = 0; c < kDim; ++c) EXPECT_NEAR(head.known[j * kDim + c], n[c] / z, 1e-5);
    for (size_t s = 0; s < 2; ++s) {
      double p = 0, squares = 0, spread = 0;
      std::vector<double> values(kDim);
      for (size_t i = ends[2 + 2 * s]; i < ends[4 + s]; ++i) {
        const double weight = std::exp(scores[i] - log_sum[j]);
        p += weight, squares += weight * weight;
        for (size_t c = 0; c < kDim; ++c) {
          const double v = rows.values[i * kDim + c];
          values[c] += weight * v, spread += std::pow(weight * (v - o[j * kDim + c]), 2);
        }
      }
      const CodedSums got = coded->sums(s, {o.data(), log_sum.data(), kGroup, kDim})[j];
      EXPECT_NEAR(got.p, p, 1e-5 * p);
      EXPECT_NEAR(got.squares, squares, 1e-5 * squares);
      EXPECT_NEAR(got.spread, spread, 1e-4 * spread);
      for (size_t c = 0; c < kDim; ++c) EXPECT_NEAR(got.values[c], values[c], 1e-5);
    }
  }
}

TEST(ProbeTiles, WithoutCodesThereAreNoSpans) {
  EXPECT_EQ(HeadTiles(kGroup, kDim).coded({})->spans(), 0u);
}

}  // namespace
}  // namespace pith
