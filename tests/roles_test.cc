// Rows that count for one sum of the softmax alone (balancekv's guaranteed form), as the cache
// stores, reports and attends to them; and its endless form.

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "cache_harness.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

constexpr size_t kRows = 700;

// Settings of balancekv beside mode=stream.
class Roles : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  Shape shape() const {
    Shape s;
    s.group = std::get<1>(GetParam());
    return s;
  }
  std::string policy() const {
    return "balancekv(mode=stream,rate=0.125,b=16," + std::get<0>(GetParam()) +
           ")+f32,sink=2,window=16";
  }
};

TEST_P(Roles, AttentionGivesEachRowItsSum) {
  const Rows rows(shape(), kRows + 3, 1);
  for (std::string_view isa : available_isas()) {
    Harness h(shape(), policy(), 1, 1, std::string(isa));
    const auto prefill = h.step(rows, 0, kRows, 40);
    for (float x : prefill) ASSERT_TRUE(std::isfinite(x));
    const auto held = test::held_rows(h.cache(), shape());
    const auto expected = test::oracle_all(shape(), rows, kRows, kRows + 3, held);
    EXPECT_LT(test::relative_error(h.attend(rows, kRows, kRows + 3), expected), 1e-5) << isa;
    // Many queries at once take the other path.
    const auto many = test::oracle_all(shape(), rows, 0, 100, held);
    EXPECT_LT(test::relative_error(h.attend(rows, 0, 100), many), 1e-5) << isa;
  }
}

TEST_P(Roles, ARowIsHeldAtMostOnceForEachSum) {
  const Rows rows(shape(), kRows, 2);
  Harness h(shape(), policy());
  h.step(rows, 0, kRows, 64);
  for (const HeadRows& head : test::held_rows(h.cache(), shape())) {
    ASSERT_EQ(head.roles.size(), head.positions.size());
    std::map<std::pair<int64_t, Role>, int> times;
    size_t numerators = 0, denominators = 0;
    for (size_t i = 0; i < head.positions.size(); ++i) {
      const int64_t p = head.positions[i];
      EXPECT_EQ(++times[std::pair(p, head.roles[i])], 1);
      const bool exact = p < 2 || p >= static_cast<int64_t>(kRows) - 16;
      EXPECT_EQ(head.roles[i] == Role::kBoth, exact) << p;
      numerators += head.roles[i] == Role::kNumerator;
      denominators += head.roles[i] == Role::kDenominator;
    }
    EXPECT_GT(numerators, 15u);
    EXPECT_GT(denominators, 15u);
  }
}

TEST_P(Roles, TheLedgerCountsBothAndIsWhatTheAllocatorSaw) {
  const Rows rows(shape(), kRows, 3);
  Harness h(shape(), policy());
  for (size_t t = 0; t < kRows; t += 23) {
    const size_t n = std::min(t + 23, kRows);
    h.step(rows, t, n, 23);
    const Ledger ledger = h.cache().ledger(), most = h.cache().estimate(n);
    ASSERT_EQ(ledger.cache_bytes() + ledger.slack,
              h.memory().bytes(MemoryKind::kPayload) + h.memory().bytes(MemoryKind::kMetadata));
    EXPECT_LE(ledger.rows_kept, most.rows_kept);
    size_t held = 0;
    for (const HeadRows& head : test::held_rows(h.cache(), shape())) held += head.positions.size();
    EXPECT_EQ(ledger.rows_kept, held);
  }
}

TEST_P(Roles, ChunksThreadsAndClonesAgree) {
  const Rows rows(shape(), kRows, 4);
  Harness whole(shape(), policy()), threads(shape(), policy(), 1, 3);
  whole.append(rows, 0, kRows, kRows);
  threads.append(rows, 0, kRows, 64);
  Harness parts(shape(), policy());
  parts.append(rows, 0, 333, 7);
  const auto copy = parts.cache().clone();
  for (size_t t = 333; t < kRows; ++t)
    copy->append(0, rows.k.data() + t * shape().kv_size(), rows.v.data() + t * shape().kv_size(),
                 1);
  for (int g = 0; g < shape().kv_heads; ++g) {
    const HeadRows expected = whole.cache().rows(0, g);
    for (const HeadRows& other : {threads.cache().rows(0, g), copy->rows(0, g)}) {
      EXPECT_EQ(other.positions, expected.positions);
      EXPECT_EQ(other.log_weights, expected.log_weights);
      EXPECT_EQ(other.roles, expected.roles);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Stream, Roles,
                         testing::Combine(testing::Values("walk=rows", "walk=pairs",
                                                          "walk=exact,endless=true"),
                                          testing::Values(1, 4)),
                         [](const auto& i) { return "case" + std::to_string(i.index); });

// The pairs and exact walks keep exactly half, so that both sums' weights are exactly n, and an
// endless tree never holds more than b (T/2 + 1) rows.
TEST(EndlessBalance, WeightsAreExactlyNAndRowsBoundedAtEveryLength) {
  constexpr size_t kMost = 60000, kBlock = 8, kRounds = 3;
  Shape shape;
  shape.head_dim = 16;
  shape.group = shape.kv_heads = 1;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> k(16), v(16);
  Harness h(shape, "balancekv(mode=stream,rate=0.125,b=8,endless=true)+f32,sink=0,window=0");
  size_t most_trees = 0;
  for (size_t n = 1; n <= kMost; ++n) {
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random) + 1;
    h.cache().append(0, k.data(), v.data(), 1);
    if (n > 300 && n % 997 != 0) continue;
    const HeadRows held = h.cache().rows(0, 0);
    double numerator = 0, denominator = 0;
    size_t denominators = 0;
    for (size_t i = 0; i < held.positions.size(); ++i) {
      const double w = std::exp(double{held.log_weights[i]});
      ASSERT_NE(held.roles[i], Role::kBoth);
      (held.roles[i] == Role::kNumerator ? numerator : denominator) += w;
      denominators += held.roles[i] == Role::kDenominator;
    }
    ASSERT_NEAR(numerator, static_cast<double>(n), 1e-4 * static_cast<double>(n));
    ASSERT_NEAR(denominator, static_cast<double>(n), 1e-4 * static_cast<double>(n));
    constexpr size_t kTree = kBlock * (kRounds / 2 + 1) + kBlock / 2 + 1;
    ASSERT_LE(denominators, kTree) << n;
    most_trees = std::max(most_trees, (held.positions.size() + kTree - 1) / kTree);
  }
  EXPECT_LE(most_trees, 5u) << "trees: the denominator's and one for each power of two of |v|";
}

// Each row's expected weight is 1 in either sum, sampled or halved.
TEST(EndlessBalance, EveryRowIsInItsSumOnAverage) {
  constexpr size_t kN = 256;
  constexpr int kSeeds = 1500;
  Shape shape;
  shape.head_dim = 16;
  shape.group = shape.kv_heads = 1;
  const Rows rows(shape, kN, 6);
  std::vector<double> mean(kN), square(kN);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Harness h(shape, "balancekv(mode=stream,rate=0.25,b=4,endless=true)+f32,sink=0,window=0", seed);
    h.append(rows, 0, kN, kN);
    const HeadRows held = h.cache().rows(0, 0);
    for (size_t i = 0; i < held.positions.size(); ++i) {
      if (held.roles[i] != Role::kDenominator) continue;
      const double w = std::exp(double{held.log_weights[i]});
      mean[static_cast<size_t>(held.positions[i])] += w / kSeeds;
      square[static_cast<size_t>(held.positions[i])] += w * w / kSeeds;
    }
  }
  for (size_t p = 0; p < kN; ++p) {
    const double deviation = std::sqrt((square[p] - mean[p] * mean[p]) / kSeeds);
    EXPECT_NEAR(mean[p], 1, 5 * deviation + 1e-6) << p;
  }
}

}  // namespace
}  // namespace pith
