// Properties of every score selector, and the differences between the rules. The rows that the
// rules keep are checked against kvpress in golden_test.cc.

#include <gtest/gtest.h>

#include <cmath>

#include "cache_harness.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

constexpr Shape kSmall{.head_dim = 16, .group = 2, .kv_heads = 2};

class Scores : public testing::TestWithParam<const char*> {
 protected:
  static std::string name() { return GetParam(); }
  static bool mass_free() { return name() == "knorm" || name() == "keydiff"; }
};

TEST_P(Scores, BudgetHoldsAtEveryStep) {
  const Rows rows(kSmall, 400, 1);
  const Rope rope(16, 10000.0);
  for (size_t chunk : {1, 7, 90}) {
    Harness h(kSmall, name() + "(budget=40,interval=12),sink=4,window=16", 1, 1, "", &rope);
    for (size_t t = 0; t < 400; t += chunk) {
      for (float x : h.step(rows, t, std::min<size_t>(t + chunk, 400), chunk))
        ASSERT_TRUE(std::isfinite(x));
      for (int g = 0; g < 2; ++g)
        ASSERT_LE(h.cache().rows(0, g).positions.size(), 4u + 16 + 40 + 12);
    }
    h.cache().end_prefill();
    for (int g = 0; g < 2; ++g)
      EXPECT_EQ(h.cache().rows(0, g).positions.size(), 60u) << "the prompt's end selects";
  }
}

TEST_P(Scores, ThreadsDoNotChangeTheRows) {
  const Shape shape{.head_dim = 32, .group = 4, .kv_heads = 4};
  const Rows rows(shape, 300, 2);
  const Rope rope(32, 10000.0);
  const std::string policy = name() + "(budget=50,interval=20),sink=4,window=16";
  Harness one(shape, policy, 1, 1, "", &rope), three(shape, policy, 1, 3, "", &rope);
  one.step(rows, 0, 300, 50);
  three.step(rows, 0, 300, 50);
  for (int g = 0; g < 4; ++g)
    EXPECT_EQ(one.cache().rows(0, g).positions, three.cache().rows(0, g).positions);
}

TEST_P(Scores, ChunkedEqualsOneAppendWhereNoAttentionIsNeeded) {
  if (!mass_free()) GTEST_SKIP() << name() << " sees other queries in other chunks";
  const Rows rows(kSmall, 400, 3);
  Harness whole(kSmall, name() + "(budget=40,interval=16)");
  whole.step(rows, 0, 400, 400);
  for (size_t chunk : {1, 13, 128}) {
    Harness chunked(kSmall, name() + "(budget=40,interval=16)");
    chunked.step(rows, 0, 400, chunk);
    EXPECT_EQ(whole.cache().rows(0, 1).positions, chunked.cache().rows(0, 1).positions);
  }
}

TEST_P(Scores, PlantedRowSurvives) {
  // Row 100 is what all queries look for, has the smallest key norm, and points away from the rest,
  // as far as these go together: one plant for rules on attention, one for those on keys alone.
  Rows rows(kSmall, 600, 4);
  for (float& x : rows.k) x = 1 + 0.3f * x;
  for (float& x : rows.q) x = (mass_free() ? 1.0f : -1.0f) + 0.3f * x;
  for (size_t c = 0; c < kSmall.kv_size(); ++c)
    rows.k[100 * kSmall.kv_size() + c] = c % 16 < 8 ? -0.4f : -0.2f;
  Harness h(kSmall, name() + "(budget=30,interval=10),sink=4,window=16");
  h.step(rows, 0, 300, 60);
  h.step(rows, 300, 600, 1);
  for (const HeadRows& head : test::held_rows(h.cache(), kSmall))
    EXPECT_EQ(std::count(head.positions.begin(), head.positions.end(), 100), 1);
}

TEST_P(Scores, FullBudgetIsExact) {
  const Rows rows(kSmall, 203, 5);
  Harness h(kSmall, name() + "(budget=200),dtype=f32");
  h.step(rows, 0, 200, 64);
  h.cache().end_prefill();
  EXPECT_EQ(h.cache().rows(0, 0).positions, test::all_rows(200).positions);
  const auto expected =
      test::oracle_all(kSmall, rows, 200, 203, std::vector<HeadRows>(2, test::all_rows(200)));
  EXPECT_LT(test::relative_error(h.attend(rows, 200, 203), expected), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Rules, Scores,
                         testing::Values("h2o", "tova", "snapkv", "pyramidkv", "expected_attention",
                                         "keydiff", "knorm"),
                         [](const auto& i) { return std::string(i.param); });

/// Attention of query token t summed over a KV head's group, in double: [t + 1] probabilities.
std::vector<double> probabilities(const Shape& shape, const Rows& rows, size_t t, int kv_head) {
  const auto d = static_cast<size_t>(shape.head_dim);
  std::vector<double> total(t + 1);
  for (int j = 0; j < shape.group; ++j) {
    const float* q =
        rows.q.data() + t * shape.q_size() + static_cast<size_t>(kv_head * shape.group + j) * d;
    std::vector<double> p(t + 1);
    double sum = 0;
    for (size_t i = 0; i <= t; ++i) {
      const float* k = rows.k.data() + i * shape.kv_size() + static_cast<size_t>(kv_head) * d;
      for (size_t c = 0; c < d; ++c) p[i] += double{q[c]} * k[c];
      sum += p[i] = std::exp(p[i] / std::sqrt(static_cast<double>(d)));
    }
    for (size_t i = 0; i <= t; ++i) total[i] += p[i] / sum;
  }
  return total;
}

std::vector<int64_t> best_and_window(std::vector<double> scores, size_t budget, size_t n) {
  std::vector<int64_t> rows;
  for (size_t i = 0; i < scores.size(); ++i) {
    const auto larger =
        std::count_if(scores.begin(), scores.end(), [&](double s) { return s > scores[i]; });
    if (static_cast<size_t>(larger) < budget) rows.push_back(static_cast<int64_t>(i));
  }
  for (size_t i = scores.size(); i < n; ++i) rows.push_back(static_cast<int64_t>(i));
  return rows;
}

TEST(H2o, KeepsTheLargestSumsOverAllQueriesAndTheGroup) {
  const Rows rows(kSmall, 150, 11);
  for (size_t chunk : {1, 50, 150}) {
    Harness h(kSmall, "h2o(budget=30,interval=1000),dtype=f32,window=20");
    h.step(rows, 0, 150, chunk);
    h.cache().end_prefill();
    for (int g = 0; g < 2; ++g) {
      std::vector<double> sums(130);
      for (size_t t = 0; t < 150; ++t) {
        const auto p = probabilities(kSmall, rows, t, g);
        for (size_t i = 0; i < std::min<size_t>(130, p.size()); ++i) sums[i] += p[i];
      }
      EXPECT_EQ(h.cache().rows(0, g).positions, best_and_window(sums, 30, 150)) << chunk;
    }
  }
}

TEST(H2o, DecayLetsOldFameFade) {
  // Row 10 is looked for until token 200, row 210 from then on, but less hard.
  Rows rows(kSmall, 420, 12);
  for (float& x : rows.k) x *= 0.1f;
  for (float& x : rows.q) x = 0;
  for (size_t g = 0; g < 2; ++g) {
    rows.k[10 * kSmall.kv_size() + g * 16] = 8;
    rows.k[210 * kSmall.kv_size() + g * 16 + 1] = 5;
  }
  for (size_t t = 0; t < 420; ++t)
    for (size_t h = 0; h < 4; ++h) rows.q[t * kSmall.q_size() + h * 16 + (t < 200 ? 0 : 1)] = 4;
  const auto kept = [&](const std::string& decay) {
    Harness h(kSmall, "h2o(budget=1,interval=10,decay=" + decay + "),window=16");
    h.step(rows, 0, 420, 1);
    h.cache().end_prefill();
    return h.cache().rows(0, 0).positions.front();
  };
  EXPECT_EQ(kept("1"), 10);
  EXPECT_EQ(kept("0.5"), 210);
}

TEST(SnapKv, AtDecodeTheLastQueriesBeforeASelectionVote) {
  // The body reaches budget + interval = 60 rows at token 75 (window 16): rows 0-59 are selected
  // from by the 8 queries 68-75, one at a time.
  const Rows rows(kSmall, 76, 13);
  Harness h(kSmall, "snapkv(budget=40,interval=20,queries=8,kernel=1),dtype=f32,window=16");
  h.step(rows, 0, 76, 1);
  for (int g = 0; g < 2; ++g) {
    std::vector<double> sums(60);
    for (size_t t = 68; t < 76; ++t) {
      const auto p = probabilities(kSmall, rows, t, g);
      for (size_t i = 0; i < 60; ++i) sums[i] += p[i];
    }
    EXPECT_EQ(h.cache().rows(0, g).positions, best_and_window(sums, 40, 76));
  }
}

TEST(PyramidKv, BudgetsFallOverLayersAndAddUp) {
  Shape shape = kSmall;
  shape.layers = 5;
  const Rows rows(shape, 800, 14);
  Harness h(shape, "pyramidkv(budget=72,interval=20,beta=4),window=8");
  size_t sum = 0, last = 1000;
  for (int l = 0; l < 5; ++l) h.step(rows, 0, 800, 100, l);
  h.cache().end_prefill();
  for (int l = 0; l < 5; ++l) {
    const size_t n = h.cache().rows(l, 0).positions.size();
    EXPECT_LT(n, last);
    last = n;
    sum += n;
  }
  EXPECT_EQ(sum, 5u * 80);
  EXPECT_EQ(last, 20u) << "80 / beta";
}

TEST(ExpectedAttention, StatisticsDoNotDependOnChunks) {
  const Rows rows(kSmall, 300, 15);
  const Rope rope(16, 10000.0);
  const std::string policy = "expected_attention(budget=40,interval=1000),dtype=f32";
  Harness whole(kSmall, policy, 1, 1, "", &rope), chunked(kSmall, policy, 1, 1, "", &rope);
  whole.step(rows, 0, 300, 300);
  chunked.step(rows, 0, 300, 11);
  whole.cache().end_prefill();
  chunked.cache().end_prefill();
  for (int g = 0; g < 2; ++g)
    EXPECT_EQ(whole.cache().rows(0, g).positions, chunked.cache().rows(0, g).positions);
}

TEST(ScoreSelectors, RowsThatASlidingWindowHidesGoFirst) {
  ThreadPool pool(1);
  MemoryCounter memory;
  const Context context{pool, memory, kernels_for("")};
  const CacheShape shape{1, 2, 1, 16, {100}, 1000};
  KvCache cache(context, shape, Policy::parse("knorm(budget=60,interval=20),window=10"), 1,
                nullptr);
  const Rows rows(Shape{.head_dim = 16, .group = 2, .kv_heads = 1}, 400, 16);
  cache.append(0, rows.k.data(), rows.v.data(), 400);
  cache.end_prefill();
  for (int64_t p : cache.rows(0, 0).positions) EXPECT_GE(p, 300);
}

TEST(ScoreSelectors, ImpossibleSettingsAreRefused) {
  EXPECT_THROW(Harness(kSmall, "snapkv(kernel=4)"), Error);
  EXPECT_THROW(Harness(kSmall, "h2o(decay=2)"), Error);
  EXPECT_THROW(Harness(kSmall, "tova(budget=0)"), Error);
  EXPECT_THROW(Harness(kSmall, "knorm(interval=0)"), Error);
  EXPECT_NO_THROW(Harness(kSmall, "h2o(budget=25%)"));
  EXPECT_NO_THROW(Harness(kSmall, "keydiff(budget=1MiB)"));
}

}  // namespace
}  // namespace pith
