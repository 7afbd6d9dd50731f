// The theorems of Express's paper as tests. Oracles work in double and share no code with src.

#include "methods/selectors/express/express.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <random>

#include "body_harness.h"
#include "cache_harness.h"
#include "rows/cpu/dense.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

constexpr size_t kDim = 16;

struct Place {
  ThreadPool pool{2};
  MemoryCounter memory{0, true};
  Context context{pool, memory, kernels_for()};
};

/// Rows of a smooth kernel: keys in three dimensions, values that vary slowly with them.
struct Smooth {
  Smooth(size_t n, uint32_t seed) : k(n * kDim), v(n * kDim) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < n; ++i) {
      for (size_t c = 0; c < 3; ++c) k[i * kDim + c] = normal(random);
      for (size_t c = 0; c < kDim; ++c)
        v[i * kDim + c] = std::sin(k[i * kDim + c % 3] + static_cast<float>(c));
    }
  }
  std::vector<float> k, v;  // [n, D]
};

ExpressRule rule_of(uint32_t s, uint32_t g = 1) {
  ExpressRule rule;
  rule.shape = {s, g};
  rule.halving.scale = 0.25f;
  return rule;
}

SelectorParts stream_of(const Context& context, const ExpressRule& rule, uint64_t seed) {
  SelectorParts parts;
  parts.rule = std::make_shared<KeepCoreset>(rule.shape);
  parts.halver =
      std::make_shared<Halver>(context, HalverRule{rule.halving, rule.weight_exponent}, seed, 0);
  return parts;
}

Coreset thin(const Context& context, const ExpressRule& rule, const Smooth& rows, size_t n,
             uint64_t seed) {
  return express_offline(context, rule, {rows.k.data(), rows.v.data(), n, kDim, 0},
                         Philox(seed, 0, 0));
}

/// Attention of `query` over the rows named, in double.
std::vector<double> attention(const Smooth& rows, const float* query, const Coreset& held) {
  std::vector<double> out(kDim);
  double sum = 0;
  for (size_t i = 0; i < held.positions.size(); ++i) {
    const auto at = static_cast<size_t>(held.positions[i]) * kDim;
    double score = 0;
    for (size_t c = 0; c < kDim; ++c) score += double{query[c]} * rows.k[at + c];
    const double p = static_cast<double>(held.weights[i]) * std::exp(score * 0.25);
    sum += p;
    for (size_t c = 0; c < kDim; ++c) out[c] += p * rows.v[at + c];
  }
  for (double& x : out) x /= sum;
  return out;
}

/// Relative error over 32 queries of the rows' own distribution.
double attention_error(const Smooth& rows, size_t n, const Coreset& held) {
  Coreset all;
  for (size_t i = 0; i < n; ++i) all.positions.push_back(static_cast<int64_t>(i));
  all.weights.assign(n, 1);
  std::mt19937 random(99);
  std::normal_distribution<float> normal;
  double difference = 0, norm = 0;
  for (int t = 0; t < 32; ++t) {
    std::vector<float> query(kDim);
    for (size_t c = 0; c < 3; ++c) query[c] = normal(random);
    const auto exact = attention(rows, query.data(), all);
    const auto got = attention(rows, query.data(), held);
    for (size_t c = 0; c < kDim; ++c) {
      difference += (got[c] - exact[c]) * (got[c] - exact[c]);
      norm += exact[c] * exact[c];
    }
  }
  return std::sqrt(difference / norm);
}

Coreset uniform_sample(size_t n, size_t kept, uint32_t seed) {
  std::vector<int64_t> all(n);
  for (size_t i = 0; i < n; ++i) all[i] = static_cast<int64_t>(i);
  std::shuffle(all.begin(), all.end(), std::mt19937(seed));
  all.resize(kept);
  return {all, std::vector<uint64_t>(kept, 1)};
}

/// Sum of weights that a cache's row report implies.
double weight_sum(const HeadRows& rows) {
  double sum = 0;
  for (float w : rows.log_weights) sum += std::exp(double{w});
  return sum;
}

TEST(KernelHalving, KeepsOneRowOfEachPair) {
  Place place;
  for (size_t s : {2, 4, 6, 62, 64, 66, 128, 130, 256}) {
    Smooth rows(s, 1);
    std::vector<int64_t> positions(s);
    for (size_t i = 0; i < s; ++i) positions[i] = static_cast<int64_t>(7 * i);
    for (float balance : {0.0f, 1.0f}) {
      HalvingRule rule;
      rule.scale = 0.25f;
      rule.balance = balance;
      const Halved half =
          halve(place.context.kernels, place.memory, rule,
                {rows.k.data(), rows.v.data(), positions.data(), s, kDim}, {Philox(s, 0, 0), 0});
      ASSERT_EQ(half.kept.size(), s / 2);
      for (size_t b = 0; b < s / 2; ++b) EXPECT_EQ(half.kept[b] / 2, b);
    }
  }
}

// The walk, written again in double over the whole kernel matrix.
TEST(KernelHalving, GreedyWalkIsThatOfTheDefinition) {
  Place place;
  constexpr size_t kS = 130;
  Smooth rows(kS, 2);
  std::vector<int64_t> positions(kS);
  for (size_t i = 0; i < kS; ++i) positions[i] = static_cast<int64_t>(i);
  double entry = 0;
  for (float x : rows.v) entry = std::max(entry, std::fabs(double{x}));
  const auto kernel = [&](size_t i, size_t j) {
    double kk = 0, vv = 0;
    for (size_t c = 0; c < kDim; ++c) {
      kk += double{rows.k[i * kDim + c]} * rows.k[j * kDim + c];
      vv += double{rows.v[i * kDim + c]} * rows.v[j * kDim + c];
    }
    return std::exp(kk * 0.25) * (vv + entry * entry);
  };
  std::vector<double> sign;
  for (size_t b = 0; b < kS / 2; ++b) {
    double acc = 0;
    for (size_t a = 0; a < b; ++a)
      acc += sign[a] * (kernel(2 * a, 2 * b) - kernel(2 * a, 2 * b + 1) - kernel(2 * a + 1, 2 * b) +
                        kernel(2 * a + 1, 2 * b + 1));
    sign.push_back(acc > 0 ? -1 : 1);
  }
  HalvingRule rule;
  rule.scale = 0.25f;
  const Halved half =
      halve(place.context.kernels, place.memory, rule,
            {rows.k.data(), rows.v.data(), positions.data(), kS, kDim}, {Philox(5, 0, 0), 0});
  const bool flipped = half.kept[0] == 1;
  for (size_t b = 0; b < kS / 2; ++b)
    EXPECT_EQ(half.kept[b] % 2 == 1, (sign[b] < 0) != flipped) << b;
}

TEST(KernelHalving, EveryRowStaysWithProbabilityOneHalf) {
  Place place;
  constexpr size_t kS = 64, kTrials = 2000;
  for (float balance : {0.0f, 0.05f, 1.0f}) {
    std::vector<size_t> stayed(kS);
    for (size_t trial = 0; trial < kTrials; ++trial) {
      Smooth rows(kS, 3);
      std::vector<int64_t> positions(kS);
      for (size_t i = 0; i < kS; ++i) positions[i] = static_cast<int64_t>(i);
      HalvingRule rule;
      rule.scale = 0.25f;
      rule.balance = balance;
      for (uint32_t r : halve(place.context.kernels, place.memory, rule,
                              {rows.k.data(), rows.v.data(), positions.data(), kS, kDim},
                              {Philox(trial, 0, 0), 0})
                            .kept)
        ++stayed[r];
    }
    const double sigma = 0.5 / std::sqrt(static_cast<double>(kTrials));
    for (size_t i = 0; i < kS; ++i)
      EXPECT_NEAR(static_cast<double>(stayed[i]) / kTrials, 0.5, 4.5 * sigma) << i;  // of 192
  }
}

TEST(Express, WeightsSumToNAndRowsStayWithinTheBoundAtEveryN) {
  Shape shape;
  shape.head_dim = static_cast<int>(kDim);
  shape.kv_heads = 1;
  shape.group = 1;
  for (const auto& [s, g] : {std::pair{8, 1}, {16, 0}, {64, 1}, {256, 1}, {256, 2}}) {
    const auto n = static_cast<size_t>(5 * s);
    const Rows rows(shape, n, 4);
    Harness h(shape, "express(heavy=0,s=" + std::to_string(s) + ",g=" + std::to_string(g) +
                         ")+f32,sink=0,window=0");
    for (size_t t = 0; t < n; ++t) {
      h.append(rows, t, t + 1, 1);
      const HeadRows held = h.cache().rows(0, 0);
      ASSERT_NEAR(weight_sum(held), static_cast<double>(t + 1), 1e-5 * static_cast<double>(t + 1));
      ASSERT_LE(2 * held.positions.size(), static_cast<size_t>(3 * s)) << s << " " << t;
      if (t < static_cast<size_t>(s)) {
        ASSERT_EQ(held.positions.size(), t + 1) << "exact while n <= s";
      }
    }
  }
}

TEST(Express, WeightsSumToExactlyNForLongStreams) {
  Place place;
  std::mt19937 random(5);
  const ExpressRule rule = rule_of(64);
  DenseCodec codec(DType::kF32);
  RowFormat format;
  format.keys = format.values = &codec;
  format.dim = kDim;
  for (int trial = 0; trial < 2; ++trial) {
    const size_t n = 1 + random() % 1000000;
    const Smooth tile(1000, 6);
    test::FedBody body(place.context, stream_of(place.context, rule, 7), format);
    RowStore& store = body.store();
    size_t most = 0;
    for (size_t t = 0; t < n; t += 1000) {
      const size_t count = std::min<size_t>(1000, n - t);
      body.feed({tile.k.data(), tile.v.data(), kDim, count, static_cast<int64_t>(t), nullptr});
      most = std::max(most, store.rows());
      ASSERT_EQ(store.rows(), KeepCoreset::load(body.state).rows());
      double sum = 0;
      for (size_t i = 0; i < store.rows(); ++i)
        sum += std::round(std::exp(double{store.log_weight(i)}));
      ASSERT_EQ(sum, static_cast<double>(t + count));
    }
    EXPECT_LE(most, 96u);
    EXPECT_EQ(body.state.fed, n);
  }
}

// The GPU's host knows its streams by this alone.
TEST(Express, CountsAloneSayWhereRowsStand) {
  Place place;
  std::mt19937 random(12);
  const Smooth rows(6000, 13);
  DenseCodec codec(DType::kF32);
  RowFormat format;
  format.keys = format.values = &codec;
  format.dim = kDim;
  for (const auto& [s, g] : {std::pair{8u, 0u}, {16u, 1u}, {64u, 0u}, {64u, 2u}, {256u, 1u}}) {
    const ExpressRule rule = rule_of(s, g);
    test::FedBody body(place.context, stream_of(place.context, rule, 3), format);
    ExpressState counted;
    for (size_t t = 0; t < 6000;) {
      const size_t count = std::min<size_t>(1 + random() % 90, 6000 - t);
      body.feed({rows.k.data() + t * kDim, rows.v.data() + t * kDim, kDim, count,
                 static_cast<int64_t>(t), nullptr});
      const ExpressState state = KeepCoreset::load(body.state);
      advance(counted, rule.shape, count);
      t += count;
      ASSERT_EQ(state.seen, counted.seen) << s;
      ASSERT_EQ(state.tau, counted.tau) << s << " " << t;
      ASSERT_EQ(state.stratum, counted.stratum) << s << " " << t;
      ASSERT_EQ(state.coreset, counted.coreset) << s << " " << t;
      ASSERT_TRUE(std::ranges::equal(state.levels, counted.levels)) << s << " " << t;
    }
  }
}

TEST(Express, OfflineFormHoldsTheStreamsRows) {
  Place place;
  DenseCodec codec(DType::kF32);
  RowFormat format;
  format.keys = format.values = &codec;
  format.dim = kDim;
  const Smooth rows(9000, 8);
  for (uint32_t g : {0u, 1u, 2u})
    for (size_t n : {1, 63, 64, 65, 100, 256, 257, 1000, 1023, 4096, 8191, 9000}) {
      ExpressRule rule = rule_of(64, g);
      test::FedBody body(place.context, stream_of(place.context, rule, 11), format);
      RowStore& store = body.store();
      for (size_t t = 0; t < n; t += 37) {
        const size_t count = std::min<size_t>(37, n - t);
        body.feed({rows.k.data() + t * kDim, rows.v.data() + t * kDim, kDim, count,
                   static_cast<int64_t>(t), nullptr});
      }
      const Coreset offline = thin(place.context, rule, rows, n, 11);
      ASSERT_EQ(offline.positions.size(), store.rows()) << n;
      for (size_t i = 0; i < store.rows(); ++i) {
        ASSERT_EQ(offline.positions[i], store.position(i)) << n << " row " << i;
        ASSERT_NEAR(std::log(static_cast<double>(offline.weights[i])), store.log_weight(i), 1e-5);
      }
    }
}

// Seed 004, Thm. 3: log^1.5(n)/s against the uniform sample's 1/sqrt(s).
TEST(Express, ErrorFallsFasterThanASampleOnASmoothKernel) {
  Place place;
  constexpr size_t kN = 8191;
  const Smooth rows(kN, 9);
  std::vector<double> log_s, ours, sample;
  double at_2048[2] = {};
  for (uint32_t s : {128, 512, 2048}) {
    double express = 0, uniform = 0;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      const Coreset held = thin(place.context, rule_of(s), rows, kN, seed);
      express += attention_error(rows, kN, held) / 6;
      uniform +=
          attention_error(rows, kN,
                          uniform_sample(kN, held.positions.size(), static_cast<uint32_t>(seed))) /
          6;
    }
    log_s.push_back(std::log(s));
    ours.push_back(std::log(express));
    sample.push_back(std::log(uniform));
    at_2048[0] = uniform;
    at_2048[1] = express;
  }
  const auto slope = [&](const std::vector<double>& y) {
    return (y.back() - y.front()) / (log_s.back() - log_s.front());
  };
  RecordProperty("slope_express", std::to_string(slope(ours)));
  RecordProperty("slope_uniform", std::to_string(slope(sample)));
  RecordProperty("gain", std::to_string(at_2048[0] / at_2048[1]));
  EXPECT_LT(slope(ours), slope(sample) - 0.15);
  EXPECT_GE(at_2048[0] / at_2048[1], 1.5);
}

// Seed 004, Cor. 2: O(s^2 log^2 n) in all, so that doubling n adds ever less.
TEST(Express, UpdateTimeGrowsAtMostWithLogSquared) {
  Place place;
  const Smooth tile(4096, 10);
  DenseCodec codec(DType::kF32);
  RowFormat format;
  format.keys = format.values = &codec;
  format.dim = kDim;
  const auto seconds = [&](size_t n) {
    double best = 1e9;
    for (int repeat = 0; repeat < 3; ++repeat) {
      test::FedBody body(place.context, stream_of(place.context, rule_of(256), 1), format);
      const std::clock_t start = std::clock();  // whatever else the machine does
      for (size_t t = 0; t < n; t += 4096)
        body.feed({tile.k.data(), tile.v.data(), kDim, 4096, static_cast<int64_t>(t), nullptr});
      best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
    }
    return best;
  };
  // The random numbers of strata cost O(n); halvings O(log^2 n). 64 times the rows must cost far
  // less than 64 times the time: (18/12)^2 = 2.25 for the halvings.
  const double short_stream = seconds(size_t{1} << 14), long_stream = seconds(size_t{1} << 20);
  RecordProperty("ratio", std::to_string(long_stream / short_stream));
  EXPECT_LT(long_stream, 24 * short_stream);
}

TEST(Express, RoundsABudgetDownAndSaysSo) {
  Shape shape;
  Harness h(shape, "express(heavy=0,s=100)");
  EXPECT_NE(h.cache().describe().find("express(s=64,"), std::string::npos);
  EXPECT_NE(h.cache().describe().find("rounded down"), std::string::npos);
  EXPECT_ANY_THROW(Harness(shape, "express(heavy=0,s=7)"));
}

}  // namespace
}  // namespace pith
