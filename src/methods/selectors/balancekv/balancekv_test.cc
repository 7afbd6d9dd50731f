// The claims of BalanceKV's paper as tests. Oracles work in double and share no code with src.

#include "methods/selectors/balancekv/balancekv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attend/attend.h"
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
  ThreadPool pool{1};
  MemoryCounter memory{0, true};
  Context context{pool, memory, kernels_for()};
};

Shape small_shape() {
  Shape shape;
  shape.head_dim = static_cast<int>(kDim);
  shape.kv_heads = 1;
  shape.group = 1;
  return shape;
}

/// Gaussian rows: keys of norm about 1.
struct Gaussian {
  Gaussian(size_t n, uint32_t seed) : k(n * kDim), v(n * kDim), positions(n) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (float& x : k) x = normal(random) / std::sqrt(static_cast<float>(kDim));
    for (float& x : v) x = normal(random);
    for (size_t i = 0; i < n; ++i) positions[i] = static_cast<int64_t>(i);
  }
  std::vector<float> k, v;  // [n, D]
  std::vector<int64_t> positions;
};

double weight_sum(const HeadRows& rows) {
  double sum = 0;
  for (float w : rows.log_weights) sum += std::exp(double{w});
  return sum;
}

TEST(BalanceKvBlock, WeightsSumToExactlyNAndEveryRowIsKeptFairly) {
  constexpr size_t kRows = 256, kSeeds = 1500;
  const Rows rows(small_shape(), kRows, 1);
  for (const char* walk : {"pairs", "exact"}) {
    std::vector<double> expected(kRows);
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      Harness h(small_shape(),
                std::string("balancekv(heavy=0,rate=0.25,b=64,balance=0.05,walk=") + walk +
                    ")+f32,sink=0,window=0",
                seed);
      h.append(rows, 0, kRows, kRows);
      const HeadRows held = h.cache().rows(0, 0);
      ASSERT_NEAR(weight_sum(held), kRows, 1e-3);
      for (size_t i = 0; i < held.positions.size(); ++i)
        expected[static_cast<size_t>(held.positions[i])] +=
            std::exp(double{held.log_weights[i]}) / kSeeds;
    }
    // A row's weight is 4 with probability 1/4: variance 3.
    for (size_t i = 0; i < kRows; ++i)
      EXPECT_NEAR(expected[i], 1, 4.5 * std::sqrt(3.0 / kSeeds)) << walk << " " << i;
  }
}

TEST(BalanceKvBlock, MemoryIsTheRateAndABlockARound) {
  const Rows rows(small_shape(), 4096, 2);
  for (int rounds = 0; rounds <= 4; ++rounds) {
    Harness h(small_shape(),
              "balancekv(heavy=0,b=64,rate=" + std::to_string(std::ldexp(1.0, -rounds)) +
                  ")+f32,sink=0,window=0");
    for (size_t n = 0; n < 4096; n += 61) {
      h.append(rows, n, std::min<size_t>(n + 61, 4096), 61);
      const HeadRows held = h.cache().rows(0, 0);
      const double seen = static_cast<double>(std::min<size_t>(n + 61, 4096));
      ASSERT_LE(static_cast<double>(held.positions.size()),
                std::ldexp(seen, -rounds) + 64.0 * rounds);
      ASSERT_NEAR(weight_sum(held), seen, 1e-4 * seen);
    }
  }
}

/// Rows held after a prompt of 3584 rows and after `more` decoded ones.
std::array<size_t, 2> held_after_prompt(const std::string& options, size_t more) {
  static const Rows rows(small_shape(), 3584 + 600, 5);
  Harness h(small_shape(), "balancekv(heavy=0," + options + ")+f32,sink=0,window=0");
  std::array<size_t, 2> held{};
  h.append(rows, 0, 3584, 256);
  h.cache().end_prefill();
  held[0] = h.cache().rows(0, 0).positions.size();
  EXPECT_NEAR(weight_sum(h.cache().rows(0, 0)), 3584, 0.1) << options;
  h.append(rows, 3584, 3584 + more, 1);
  const HeadRows end = h.cache().rows(0, 0);
  held[1] = end.positions.size();
  EXPECT_NEAR(weight_sum(end), static_cast<double>(3584 + more), 0.1) << options;
  EXPECT_TRUE(std::ranges::is_sorted(end.positions)) << options;
  return held;
}

TEST(BalanceKvBlock, FlushedAtAPromptsEndTheRateIsReached) {
  using Held = std::array<size_t, 2>;
  EXPECT_EQ(held_after_prompt("rate=0.125", 600), (Held{512, 600}));
  EXPECT_EQ(held_after_prompt("rate=0.0625", 600), (Held{384, 344}));
  // 3584 / 8 and / 16; 600 rows more are two blocks, which level 2 has, and 88 that wait.
  EXPECT_EQ(held_after_prompt("rate=0.125,flush=true", 600), (Held{448, 664}));
  EXPECT_EQ(held_after_prompt("rate=0.0625,flush=true", 600), (Held{224, 440}));
  // Blocks of 1024: three and 512 rows that wait.
  EXPECT_EQ(held_after_prompt("rate=0.25,b=1024", 0)[0], 512u + 512 + 512);
  EXPECT_EQ(held_after_prompt("rate=0.25,b=1024,flush=true", 0)[0], 896u);
}

TEST(BalanceKvBlock, DecodedRowsStayWhereThatIsAsked) {
  using Held = std::array<size_t, 2>;
  EXPECT_EQ(held_after_prompt("rate=0.125,decode=exact", 600), (Held{512, 1112}));
  EXPECT_EQ(held_after_prompt("rate=0.0625,flush=true,decode=exact", 600), (Held{224, 824}));
}

TEST(SoftmaxBalance, CoinSideIsUnbiasedAndTheSmallerSideIsAtMostHalf) {
  Place place;
  constexpr size_t kS = 64, kTrials = 2000;
  std::vector<size_t> stayed(kS);
  double smaller = 0;
  for (size_t trial = 0; trial < kTrials; ++trial)
    for (KeptSide side : {KeptSide::kCoin, KeptSide::kSmaller}) {
      Gaussian rows(kS, 3);
      HalvingRule rule;
      rule.scale = 0.25f;
      rule.walk = Walk::kRows;
      rule.balance = 0.05f;
      rule.side = side;
      const Halved half = halve(place.context.kernels, place.memory, rule,
                                {rows.k.data(), rows.v.data(), rows.positions.data(), kS, kDim},
                                {Philox(trial, 0, 0), 0});
      if (side == KeptSide::kCoin) {
        for (uint32_t r : half.kept) ++stayed[r];
      } else {
        ASSERT_LE(half.kept.size(), kS / 2);
        smaller += static_cast<double>(half.kept.size()) / kTrials;
      }
    }
  for (size_t i = 0; i < kS; ++i)
    EXPECT_NEAR(static_cast<double>(stayed[i]) / kTrials, 0.5,
                4.5 * 0.5 / std::sqrt(static_cast<double>(kTrials)));
  // The listing's choice of the smaller side loses some weight: E min(|C+|, |C-|) < S/2.
  EXPECT_GT(smaller, 0.85 * kS / 2);
}

/// max over queries of |sum_kept - sum_dropped| exp(<k, q>) v, in double.
double discrepancy(const Gaussian& rows, const std::vector<uint32_t>& kept) {
  const size_t n = rows.positions.size();
  std::vector<double> sign(n, -1);
  for (uint32_t r : kept) sign[r] = 1;
  std::mt19937 random(77);
  std::normal_distribution<double> normal;
  double sum = 0;
  constexpr int kQueries = 16;
  for (int t = 0; t < kQueries; ++t) {
    std::vector<double> q(kDim), out(kDim);
    for (double& x : q) x = normal(random);
    for (size_t i = 0; i < n; ++i) {
      double score = 0;
      for (size_t c = 0; c < kDim; ++c) score += q[c] * rows.k[i * kDim + c];
      for (size_t c = 0; c < kDim; ++c)
        out[c] += sign[i] * std::exp(score * 0.25) * rows.v[i * kDim + c];
    }
    double norm = 0;
    for (double x : out) norm += x * x;
    sum += std::sqrt(norm) / kQueries;
  }
  return sum;
}

/// Relative residual of the least-squares fit y = a x.
double residual(const std::vector<double>& x, const std::vector<double>& y) {
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) xy += x[i] * y[i], xx += x[i] * x[i], yy += y[i] * y[i];
  return std::sqrt(std::max(0.0, 1 - xy * xy / (xx * yy)));
}

// Seed 000, Thm. 3.2: O(log n) against the fair coin's sqrt(n), over n = 2^8 .. 2^14.
TEST(SoftmaxBalance, DiscrepancyGrowsLikeALogarithm) {
  Place place;
  std::vector<double> log_n, root_n, balanced, fair;
  for (int power = 8; power <= 14; power += 2) {
    const size_t n = size_t{1} << power;
    double ours = 0, coins = 0;
    for (uint32_t seed = 0; seed < 4; ++seed) {
      Gaussian rows(n, 50 + seed), work = rows;
      HalvingRule rule;
      rule.scale = 0.25f;
      rule.walk = Walk::kRows;
      rule.value_constant = 0;
      ours +=
          discrepancy(rows, halve(place.context.kernels, place.memory, rule,
                                  {work.k.data(), work.v.data(), work.positions.data(), n, kDim},
                                  {Philox(seed, 0, 0), 0})
                                .kept) /
          4;
      std::vector<uint32_t> kept;
      std::mt19937 random(seed);
      for (uint32_t i = 0; i < n; ++i)
        if (random() % 2 == 0) kept.push_back(i);
      coins += discrepancy(rows, kept) / 4;
    }
    log_n.push_back(power);
    root_n.push_back(std::sqrt(static_cast<double>(n)));
    balanced.push_back(ours);
    fair.push_back(coins);
  }
  RecordProperty("balanced", std::to_string(balanced.back() / balanced.front()));
  RecordProperty("fair", std::to_string(fair.back() / fair.front()));
  EXPECT_LT(residual(log_n, balanced), residual(root_n, balanced) / 2);
  EXPECT_LT(residual(root_n, fair), residual(log_n, fair) / 2);
  EXPECT_LT(balanced.back(), fair.back() / 4);
}

struct StreamPlace : Place {
  explicit StreamPlace(const BalanceRule& rule) {
    SelectorSite site;
    site.seed = 3;
    site.heads = 1;
    site.head_dim = kDim;
    site.scale = rule.halving.scale;
    auto stream = make_balance_stream(context, site, rule);
    selector = stream.get();
    format.keys = format.values = &codec;
    format.dim = kDim;
    body.emplace(context,
                 SelectorParts{std::make_shared<BalanceSums>(rule.shape()), std::move(stream), {}},
                 format);
  }
  void feed(const Gaussian& rows, size_t first, size_t count) {
    body->feed({rows.k.data() + first * kDim, rows.v.data() + first * kDim, kDim, count,
                static_cast<int64_t>(first), nullptr});
  }
  HeadBody& held() { return body->bodies[0]; }
  DenseCodec codec{DType::kF32};
  RowFormat format;
  std::optional<test::FedBody> body;
  const BalanceStream* selector = nullptr;  // the body's
};

BalanceRule stream_rule(uint32_t rounds, uint32_t block) {
  BalanceRule rule;
  rule.rounds = rounds;
  rule.block = block;
  rule.halving.scale = 0.25f;
  rule.halving.walk = Walk::kRows;
  return rule;
}

TEST(BalanceKvStream, MemoryAndBucketsStayWithinTheirBounds) {
  constexpr uint32_t kRounds = 12, kBlock = 32;  // T >= log2(n/t): every level is bounded
  constexpr size_t kN = 1 << 14;
  Gaussian rows(kN, 7);
  std::mt19937 random(8);
  for (size_t i = 0; i < kN; ++i) {  // norms over ten orders of magnitude
    const float by = std::ldexp(1.0f, -static_cast<int>(random() % 40));
    for (size_t c = 0; c < kDim; ++c) rows.v[i * kDim + c] *= by;
  }
  const BalanceRule rule = stream_rule(kRounds, kBlock);
  StreamPlace place(rule);
  double largest_key = 0;
  for (size_t t = 0; t < kN; t += 512) {
    place.feed(rows, t, 512);
    for (size_t i = t; i < t + 512; ++i) {
      double norm = 0;
      for (size_t c = 0; c < kDim; ++c) norm += double{rows.k[i * kDim + c]} * rows.k[i * kDim + c];
      largest_key = std::max(largest_key, norm);
    }
    const double most =
        std::log2(2.0 * static_cast<double>(t + 512) * std::exp(largest_key * 0.25) / rule.epsilon);
    ASSERT_LE(static_cast<double>(place.selector->buckets(0)), most + 2);
    for (size_t i = 1; i < place.held().stores(); ++i)
      ASSERT_LE(place.held().store(i).rows(), size_t{kBlock} * (kRounds + 1));
    ASSERT_LE(place.held().rows(), place.body->selector.rule->most_rows(t + 512));
  }
  EXPECT_LT(place.selector->buckets(0), 40u) << "small buckets were erased";
}

// z = numerator / denominator, each over the rows of its own role, in double.
TEST(BalanceKvStream, EstimatesBothSumsAndAttendFollowsTheRoles) {
  constexpr size_t kN = 8192;
  Gaussian rows(kN, 9);
  for (float& x : rows.v) x += 1;
  const BalanceRule rule = stream_rule(3, 256);
  StreamPlace place(rule);
  for (size_t t = 0; t < kN; t += 1024) place.feed(rows, t, 1024);
  std::vector<float> q(kDim, 0.3f), out(kDim);
  std::vector<double> numerator(kDim), exact(kDim), z(kDim);
  double denominator = 0, exact_sum = 0;
  const auto score = [&](size_t row) {
    double s = 0;
    for (size_t c = 0; c < kDim; ++c) s += double{q[c]} * rows.k[row * kDim + c];
    return std::exp(s * 0.25);
  };
  for (size_t i = 0; i < kN; ++i) {
    exact_sum += score(i);
    for (size_t c = 0; c < kDim; ++c) exact[c] += score(i) * rows.v[i * kDim + c];
  }
  std::vector<Span> spans;
  for (size_t i = 0; i < place.held().stores(); ++i) {
    RowStore& store = place.held().store(i);
    if (store.rows() > 0) spans.push_back(store.span());
    for (size_t r = 0; r < store.rows(); ++r) {
      const auto at = static_cast<size_t>(store.position(r));
      const double p = score(at) * std::exp(double{store.log_weight(r)});
      ASSERT_NE(store.role(), Role::kBoth);
      if (store.role() == Role::kDenominator)
        denominator += p;
      else
        for (size_t c = 0; c < kDim; ++c) numerator[c] += p * rows.v[at * kDim + c];
    }
  }
  for (size_t c = 0; c < kDim; ++c) z[c] = numerator[c] / denominator, exact[c] /= exact_sum;
  AttendCall call;
  call.shape = {1, 1, kDim, 0.25f};
  call.q = q.data();
  call.tokens = 1;
  call.first_position = kN;
  const std::span<const Span> list(spans);
  call.spans = {&list, 1};
  call.out = out.data();
  attend(place.context, call);
  EXPECT_LT(test::relative_error(out, z), 1e-5);
  EXPECT_LT(test::relative_error(z, exact), 0.05);
  EXPECT_NEAR(denominator / exact_sum, 1, 0.05);
  EXPECT_LT(place.held().rows(), kN / 2);
}

TEST(BalanceKvStream, RateOneIsExact) {
  const Shape shape = small_shape();
  const Rows rows(shape, 503, 9);
  Harness whole(shape, "balancekv(mode=stream,rate=1)+f32,sink=0,window=0");
  whole.append(rows, 0, 500, 77);
  const auto all = test::oracle_all(shape, rows, 500, 503, {test::all_rows(500)});
  EXPECT_LT(test::relative_error(whole.attend(rows, 500, 503), all), 1e-5);
}

TEST(BalanceKvStream, ChunkingAndThreadsDoNotChangeTheRows) {
  Shape shape = small_shape();
  shape.kv_heads = 3;
  const Rows rows(shape, 1500, 10);
  const std::string policy = "balancekv(mode=stream,rate=0.125,b=64,balance=0.1),sink=2,window=16";
  Harness one(shape, policy, 5, 1);
  one.append(rows, 0, 1500, 1500);
  for (size_t chunk : {1, 7, 256}) {
    Harness other(shape, policy, 5, 3);
    other.append(rows, 0, 1500, chunk);
    for (int g = 0; g < 3; ++g)
      EXPECT_EQ(one.cache().rows(0, g).positions, other.cache().rows(0, g).positions);
    EXPECT_EQ(one.attend(rows, 0, 1), other.attend(rows, 0, 1));
  }
}

// With a threshold far below the paper's, the walk must leave its range; with the paper's, never.
TEST(BalanceKvStream, FailuresAreCounted) {
  const Gaussian rows(2048, 11);
  for (float balance : {1.0f, 1e-4f}) {
    BalanceRule rule = stream_rule(3, 128);
    rule.halving.balance = balance;
    StreamPlace place(rule);
    place.feed(rows, 0, 2048);
    if (balance == 1.0f)
      EXPECT_EQ(place.selector->failures(), 0u);
    else
      EXPECT_GT(place.selector->failures(), 100u);
  }
}

TEST(BalanceKv, RefusesWhatItCannotDo) {
  const Shape shape = small_shape();
  EXPECT_ANY_THROW(Harness(shape, "balancekv(heavy=0,rate=0.3)"));
  EXPECT_ANY_THROW(Harness(shape, "balancekv(b=255,heavy=0)"));
  EXPECT_ANY_THROW(Harness(shape, "balancekv(heavy=0,walk=rows)"));
  EXPECT_ANY_THROW(Harness(shape, "balancekv(heavy=0,rate=0.5,budget=100)"));
  EXPECT_ANY_THROW(Harness(shape, "balancekv(mode=stream,budget=100)"));
  EXPECT_ANY_THROW(Harness(shape, "balancekv(mode=stream,flush=true)"));
  EXPECT_ANY_THROW(Harness(shape, "balancekv(mode=stream,decode=exact)"));
  EXPECT_ANY_THROW(Harness(shape, "balancekv(budget=35%,decode=exact)"));
  EXPECT_ANY_THROW(Harness(shape, "balancekv(heavy=0,rate=0.125,b=12,flush=true)"));
  Harness h(shape, "balancekv(budget=35%,heavy=0)");
  EXPECT_NE(h.cache().describe().find("rate=0.25"), std::string::npos);
}

}  // namespace
}  // namespace pith
