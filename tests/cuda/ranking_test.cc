// Logits ranked on the GPU against a full sort on the host.

#include "kernels/cuda/ranking.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "harness.h"

namespace pith::cuda {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Changes {
  std::vector<LogitAdjustment> adjusted;
  std::vector<uint32_t> mask;
};

std::vector<RankedLogit> sorted(std::vector<float> logits, size_t count, const Changes& changes) {
  for (const auto& [id, bias, divisor, minus] : changes.adjusted) {
    float& x = logits[static_cast<size_t>(id)];
    x += bias;
    x = x > 0 ? x / divisor : x * divisor;
    x -= minus;
  }
  const auto& mask = changes.mask;
  for (size_t i = 0; i < logits.size() && !mask.empty(); ++i)
    if (i / 32 >= mask.size() || (mask[i / 32] >> i % 32) % 2 == 0) logits[i] = kInf;
  std::vector<RankedLogit> all;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) all.push_back({logits[i], static_cast<int32_t>(i)});
  }
  std::ranges::stable_sort(all, std::greater(), &RankedLogit::logit);
  if (all.size() > count) all.erase(all.begin() + static_cast<ptrdiff_t>(count), all.end());
  return all;
}

/// Few values, so that many are equal, and zeros of both signs.
std::vector<float> coarse_logits(size_t n) {
  std::mt19937 random(static_cast<uint32_t>(n));
  std::normal_distribution<float> draw(0, 3);
  std::vector<float> x(n);
  for (float& v : x) v = std::round(draw(random) * 4) / 4;
  return x;
}

// All rows in one launch, each as it is found alone: also rows of which nothing is finite.
TEST(CudaRanking, TheLargestOfManyRows) {
  PITH_NEEDS_GPU();
  for (const size_t n : {1, 63, 301, 40001}) {
    for (const size_t rows : {1, 3, 64}) {
      std::vector<float> all;
      for (size_t row = 0; row < rows; ++row) {
        std::vector<float> x = coarse_logits(n + row);
        x.resize(n);
        if (row % 5 == 1) x[n / 2] = std::numeric_limits<float>::quiet_NaN();
        if (row % 5 == 2) std::ranges::fill(x, -kInf);
        if (row % 5 == 3) std::ranges::fill(x, -0.0f);
        all.insert(all.end(), x.begin(), x.end());
      }
      MemoryCounter memory;
      LogitRanking ranking(memory, n, nullptr, 64);
      const auto logits = to_device(memory, all);
      const auto found = ranking.largest(logits.data(), rows);
      ASSERT_EQ(found.size(), rows);
      for (size_t row = 0; row < rows; ++row) {
        const std::vector<float> x(all.begin() + static_cast<ptrdiff_t>(row * n),
                                   all.begin() + static_cast<ptrdiff_t>((row + 1) * n));
        const auto want = sorted(x, 1, {});
        EXPECT_EQ(found[row].best.id, want.empty() ? -1 : want[0].id) << n << ", row " << row;
        if (!want.empty()) {
          EXPECT_EQ(found[row].best.logit, want[0].logit);
        }
        EXPECT_EQ(found[row].all_finite,
                  std::ranges::all_of(x, [](float f) { return std::isfinite(f); }));
      }
    }
  }
}

class Ranking {
 public:
  explicit Ranking(size_t n)
      : ranking_(memory_, n, nullptr), logits_(memory_, MemoryKind::kScratch) {
    logits_.allocate(n, nullptr);
  }
  std::span<const RankedLogit> rank(const std::vector<float>& logits, size_t count,
                                    const Changes& changes = {}) {
    logits_.upload(logits.data(), logits.size(), nullptr);
    const auto best =
        ranking_.rank({logits_.data(), count, changes.adjusted, changes.mask}, all_finite_);
    std::vector<float> after(logits.size());
    logits_.download(after.data(), after.size(), nullptr);
    EXPECT_EQ(std::memcmp(after.data(), logits.data(), logits.size() * sizeof(float)), 0);
    return best;
  }
  bool all_finite() const { return all_finite_; }

 private:
  MemoryCounter memory_;
  LogitRanking ranking_;
  DeviceArray<float> logits_;
  bool all_finite_ = false;
};

void expect_equal(std::span<const RankedLogit> got, const std::vector<RankedLogit>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(got[i].id, want[i].id) << i;
    ASSERT_EQ(got[i].logit, want[i].logit) << i;
  }
}

TEST(CudaRanking, AsAFullSort) {
  PITH_NEEDS_GPU();
  for (const size_t n : {1, 7, 512, 1000, 32000, 151936}) {
    const auto logits = coarse_logits(n);
    Ranking ranking(n);
    Changes changes, masked;
    for (int32_t id = 0; id < static_cast<int32_t>(std::min<size_t>(n, 300)); ++id) {
      const float bias = id % 5 == 1 ? -kInf : 0.1f * static_cast<float>(id % 7);
      if (id % 3 != 2) changes.adjusted.push_back({id, bias, id % 2 == 0 ? 1.7f : 1.0f, 0.3f});
    }
    std::mt19937 random(5);
    masked.adjusted = changes.adjusted;
    masked.mask.resize((n + 63) / 64);  // of the upper half at most a word
    for (uint32_t& word : masked.mask) word = static_cast<uint32_t>(random());
    for (const size_t count : {size_t{1}, size_t{2}, size_t{40}, kMostRanked}) {
      SCOPED_TRACE(testing::Message() << n << " logits, " << count);
      expect_equal(ranking.rank(logits, count), sorted(logits, count, {}));
      EXPECT_TRUE(ranking.all_finite());
      expect_equal(ranking.rank(logits, count, changes), sorted(logits, count, changes));
      expect_equal(ranking.rank(logits, count, masked), sorted(logits, count, masked));
      EXPECT_TRUE(ranking.all_finite());
    }
  }
}

TEST(CudaRanking, WhatIsNotFiniteIsSeenAndNeverChosen) {
  PITH_NEEDS_GPU();
  auto logits = coarse_logits(1000);
  Ranking ranking(1000);
  for (const float odd : {kInf, -kInf, std::nanf("")}) {
    logits[500] = odd;
    for (const size_t count : {size_t{1}, kMostRanked}) {
      expect_equal(ranking.rank(logits, count), sorted(logits, count, {}));
      EXPECT_FALSE(ranking.all_finite());
    }
  }
  logits[500] = 3e38f;  // finite, but not with this penalty
  const Changes changes{{{500, 0, 0.1f, 0}}, {}};
  expect_equal(ranking.rank(logits, 40, changes), sorted(logits, 40, changes));
  EXPECT_TRUE(ranking.all_finite());
}

TEST(CudaRanking, NothingMayBeLeft) {
  PITH_NEEDS_GPU();
  Ranking ranking(3);
  const Changes never{{{0, -kInf, 1, 0}, {1, -kInf, 1, 0}, {2, -kInf, 1, 0}}, {}};
  const Changes masked{{}, {0}};
  for (const size_t count : {1, 2}) {
    EXPECT_TRUE(ranking.rank({1, 2, 3}, count, never).empty());
    EXPECT_TRUE(ranking.rank({1, 2, 3}, count, masked).empty());
  }
}

}  // namespace
}  // namespace pith::cuda
