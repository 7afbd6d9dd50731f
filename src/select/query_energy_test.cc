// The energy of a head's first queries against sums in double, however they arrive.

#include "select/query_energy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rows/cpu/test_coded_rows.h"
#include "select/selector.h"

namespace pith {
namespace {

using test::Machine;

constexpr size_t kDim = 6, kGroup = 2, kHeads = 3, kTokens = 20;  // D, H / G, G, T

/// Queries [T, H, D] without any that are alike.
std::vector<float> queries() {
  std::vector<float> q(kTokens * kHeads * kGroup * kDim);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(std::sin(1.3 * double(i * i)));
  return q;
}

HeadQueries part(const std::vector<float>& q, size_t head, size_t first, size_t count) {
  const size_t stride = kHeads * kGroup * kDim;
  return {q.data() + first * stride + head * kGroup * kDim, stride, count, kGroup,
          static_cast<int64_t>(first)};
}

std::vector<double> expected(const std::vector<float>& q, size_t head, size_t first, size_t last) {
  std::vector<double> mean(kDim / 2);
  for (size_t t = first; t < last; ++t)
    for (size_t c = 0; c < kGroup * kDim; ++c)
      mean[c % (kDim / 2)] += std::pow(q[(t * kHeads + head) * kGroup * kDim + c], 2);
  for (double& m : mean) m /= double(last - first);
  return mean;
}

TEST(QueryEnergy, IsTheMeanSquareOfEachPairOfTheFirstQueries) {
  Machine machine;
  const auto q = queries();
  for (size_t head = 0; head < kHeads; ++head) {
    QueryEnergy energy(machine.memory, kDim, 4, 15);
    EXPECT_TRUE(energy.mean().empty());
    EXPECT_TRUE(energy.add(part(q, head, 0, kTokens)));
    const auto want = expected(q, head, 4, 15);
    ASSERT_EQ(energy.mean().size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(energy.mean()[i], want[i], 1e-5);
  }
}

TEST(QueryEnergy, PartsMakeTheSameAndAPositionCountsOnce) {
  Machine machine;
  const auto q = queries();
  QueryEnergy whole(machine.memory, kDim, 4, 15), parts(machine.memory, kDim, 4, 15);
  whole.add(part(q, 1, 0, kTokens));
  EXPECT_FALSE(parts.add(part(q, 1, 0, 4)));
  for (size_t t = 4; t < 15; ++t) {
    EXPECT_TRUE(parts.add(part(q, 1, t, 1)));
    EXPECT_FALSE(parts.add(part(q, 1, t, 1)));  // as after a step that failed
  }
  EXPECT_FALSE(parts.add(part(q, 1, 15, 5)));
  EXPECT_EQ(parts.mean(), whole.mean());
}

TEST(QueryEnergy, RowsWithoutQueriesLeaveTheOthers) {
  Machine machine;
  const auto q = queries();
  QueryEnergy energy(machine.memory, kDim, 4, 15);
  energy.add(part(q, 0, 10, 10));
  const auto want = expected(q, 0, 10, 15);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(energy.mean()[i], want[i], 1e-5);
}

}  // namespace
}  // namespace pith
