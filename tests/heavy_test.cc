// Heavy rows apart: the rows with recent mass stay with weight 1, the others are sampled, and
// together they stand for all.

#include "methods/heavy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "cache/kv_cache.h"
#include "kernels/kernels.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kDim = 16;

struct Stream {
  explicit Stream(size_t tokens, uint32_t seed = 1)
      : q(tokens * 2 * kDim), k(tokens * kDim), v(tokens * kDim) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (std::vector<float>* x : {&q, &k, &v})
      for (float& y : *x) y = normal(random);
  }
  std::vector<float> q;     // [T, 2, D]
  std::vector<float> k, v;  // [T, 1, D]
};

struct Place {
  explicit Place(const std::string& policy, uint64_t seed = 1, int threads = 1)
      : pool(threads),
        context{pool, memory, kernels_for()},
        cache(context, {1, 2, 1, kDim, {}, 2000}, Policy::parse(policy), seed, nullptr) {}
  void step(const Stream& s, size_t first, size_t last, size_t chunk) {
    std::vector<float> out(chunk * 2 * kDim);
    for (size_t t = first; t < last; t += chunk)
      cache.step(0, out.data(), s.q.data() + t * 2 * kDim, s.k.data() + t * kDim,
                 s.v.data() + t * kDim, std::min(chunk, last - t));
  }
  ThreadPool pool;
  MemoryCounter memory;
  Context context;
  KvCache cache;
};

const char* const kPolicies[] = {
    "uniform(budget=32,heavy=24,heavy_interval=16,heavy_queries=8)+f32,sink=2,window=8",
    "express(s=32,heavy=24,heavy_interval=16,heavy_queries=8)+f32,sink=2,window=8",
    "balancekv(rate=0.25,b=16,heavy=24,heavy_interval=16,heavy_queries=8)+f32,sink=2,window=8",
    "express(s=32,heavy=24,heavy_keys=0,heavy_interval=16,heavy_queries=8)+f32,sink=2,window=8"};
const char* const kByKey =
    "balancekv(rate=0.25,b=16,heavy=24,heavy_keys=1,heavy_interval=16)+f32,"
    "sink=2,window=8";

// Queries look for a direction that a few early rows have: these are needles.
TEST(Heavy, RowsWithRecentMassStayWithWeightOne) {
  for (const std::string policy : kPolicies) {
    Stream s(600);
    for (size_t t = 0; t < 600; ++t)
      for (size_t h = 0; h < 2; ++h) s.q[(t * 2 + h) * kDim] = 6;
    const std::vector<int64_t> needles = {20, 77, 150};
    for (int64_t p : needles) s.k[static_cast<size_t>(p) * kDim] = 6;
    size_t found = 0;
    for (uint64_t seed = 0; seed < 4; ++seed) {
      Place place(policy, seed);
      place.step(s, 0, 600, 50);
      const HeadRows held = place.cache.rows(0, 0);
      for (size_t i = 0; i < held.positions.size(); ++i)
        found += std::ranges::count(needles, held.positions[i]) > 0 && held.log_weights[i] == 0;
    }
    EXPECT_EQ(found, 4 * needles.size()) << policy;
  }
}

/// Positions of the rows that are held with weight 1 among [first, last).
std::set<int64_t> apart(const KvCache& cache, int64_t first, int64_t last) {
  const HeadRows held = cache.rows(0, 0);
  std::set<int64_t> out;
  for (size_t i = 0; i < held.positions.size(); ++i)
    if (held.log_weights[i] == 0 && held.positions[i] >= first && held.positions[i] < last)
      out.insert(held.positions[i]);
  return out;
}

double dot(const float* a, const double* b) {
  double sum = 0;
  for (size_t c = 0; c < kDim; ++c) sum += a[c] * b[c];
  return sum;
}

double length(const float* a) {
  double sum = 0;
  for (size_t c = 0; c < kDim; ++c) sum += double{a[c]} * a[c];
  return std::sqrt(sum);
}

/// Of rows [first, last) the `count` whose keys have the least cosine with the mean direction.
std::set<int64_t> most_unlike(const Stream& s, int64_t first, int64_t last, size_t count) {
  std::vector<double> mean(kDim);
  std::vector<std::pair<double, int64_t>> rows;
  for (int64_t r = first; r < last; ++r) {
    const float* k = s.k.data() + static_cast<size_t>(r) * kDim;
    for (size_t c = 0; c < kDim; ++c) mean[c] += k[c] / length(k);
  }
  for (int64_t r = first; r < last; ++r) {
    const float* k = s.k.data() + static_cast<size_t>(r) * kDim;
    rows.emplace_back(dot(k, mean.data()) / length(k), r);
  }
  std::ranges::sort(rows);
  std::set<int64_t> out;
  for (size_t i = 0; i < count; ++i) out.insert(rows[i].second);
  return out;
}

// The first selection, of 40 rows: one row of the others stands for all 16 that leave.
TEST(Heavy, KeysUnlikeAllOthersStay) {
  const std::string around = "heavy_interval=16,heavy_queries=8)+f32,sink=2,window=8";
  for (uint32_t seed = 1; seed < 6; ++seed) {
    Stream s(50, seed);
    for (size_t t = 0; t < 50; ++t) s.k[t * kDim + 2] += 2;  // a direction that most share
    Place place("uniform(budget=1,heavy=24,heavy_keys=1," + around);
    place.step(s, 0, 50, 10);
    EXPECT_EQ(apart(place.cache, 2, 42), most_unlike(s, 2, 42, 24));
  }
  // Half for their keys: rows that queries look for point where all keys point, and stay too.
  Stream s(50);
  std::vector<int64_t> sought;
  for (size_t t = 0; t < 50; ++t) {
    s.k[t * kDim + 2] += 2;
    for (size_t h = 0; h < 2; ++h) s.q[(t * 2 + h) * kDim + 2] = 8;
    if (t % 5 != 3 || t > 41) continue;
    s.k[t * kDim + 2] += 8;
    sought.push_back(static_cast<int64_t>(t));
  }
  const auto found = [&](const std::string& share) {
    Place place("uniform(budget=1,heavy=24,heavy_keys=" + share + "," + around);
    place.step(s, 0, 50, 10);
    const auto held = apart(place.cache, 2, 42);
    EXPECT_EQ(held.size(), 24u);
    return std::ranges::count_if(sought, [&](int64_t p) { return held.contains(p); });
  };
  EXPECT_EQ(found("0.5"), 8);
  EXPECT_LT(found("1"), 3);
  Place place("uniform(budget=1,heavy=24,heavy_keys=0.5," + around);
  place.step(s, 0, 50, 10);
  const auto held = apart(place.cache, 2, 42);
  for (const int64_t p : most_unlike(s, 2, 42, 12)) EXPECT_TRUE(held.contains(p)) << p;
}

/// Both sums of attention of one query, and the keys' largest length.
struct Sums {
  std::array<double, kDim> values{};
  double weights = 0, radius = 0;

  void add(const Stream& s, const float* q, int64_t row, double weight) {
    const float* k = s.k.data() + static_cast<size_t>(row) * kDim;
    const float* v = s.v.data() + static_cast<size_t>(row) * kDim;
    const std::vector<double> query(q, q + kDim);
    weight *= std::exp(dot(k, query.data()) / std::sqrt(double{kDim}));
    for (size_t c = 0; c < kDim; ++c) values[c] += weight * v[c];
    weights += weight;
    radius = std::max(radius, length(k));
  }
  /// |a / A - b / B| over channels, Euclidean.
  static double distance(const Sums& a, double total_a, const Sums& b, double total_b) {
    double sum = 0;
    for (size_t c = 0; c < kDim; ++c) {
      const double x = a.values[c] / total_a - b.values[c] / total_b;
      sum += x * x;
    }
    return std::sqrt(sum);
  }
};

// The guarantee with heavy rows (docs/decisions/0013): heavy rows add nothing to the error, so that
//   |o' - o| <= (|N'_R - N_R| + |o| |Z'_R - Z_R|) / Z'
// over the other rows R alone, whose radius, from which the guarantee's constant follows, is
// smaller. Long keys in directions of their own are what a coreset represents worst: the error is
// less by more than half here, with fewer rows.
TEST(Heavy, TheGuaranteeIsThatOfTheOtherRows) {
  constexpr size_t kTokens = 900;
  Stream s(kTokens);
  for (size_t t = 0; t < kTokens; ++t) {
    const bool unlike = t % 60 == 7;
    for (size_t c = 0; c < kDim; ++c) {
      s.k[t * kDim + c] *= unlike ? 3.0f : 0.3f;
      if (!unlike) s.v[t * kDim + c] *= 0.3f;
    }
    s.k[t * kDim + 2] += unlike ? -2.0f : 2.0f;
  }
  const auto errors = [&](const std::string& policy, double* radius) {
    double total = 0;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Place place(policy + "+f32,sink=2,window=8", seed);
      place.step(s, 0, kTokens, 50);
      const HeadRows held = place.cache.rows(0, 0);
      std::map<int64_t, double> weights;
      for (size_t i = 0; i < held.positions.size(); ++i)
        weights[held.positions[i]] = std::exp(double{held.log_weights[i]});
      for (size_t t = 0; t < 64; ++t) {
        const float* q = s.q.data() + t * 2 * kDim;
        Sums exact, estimate, rest, rest_estimate;
        for (int64_t r = 0; r < static_cast<int64_t>(kTokens); ++r) {
          const auto found = weights.find(r);
          const bool stays = found != weights.end() && found->second == 1;
          exact.add(s, q, r, 1);
          if (found != weights.end()) estimate.add(s, q, r, found->second);
          if (stays) continue;
          rest.add(s, q, r, 1);
          if (found != weights.end()) rest_estimate.add(s, q, r, found->second);
        }
        const double error = Sums::distance(estimate, estimate.weights, exact, exact.weights);
        const double bound =
            Sums::distance(rest_estimate, estimate.weights, rest, estimate.weights) +
            Sums::distance(exact, exact.weights, {}, 1) *
                std::fabs(rest_estimate.weights - rest.weights) / estimate.weights;
        EXPECT_LE(error, bound * (1 + 1e-4) + 1e-6) << policy;
        total += error;
        *radius = std::max(*radius, rest.radius);
      }
    }
    return total;
  };
  double plain_radius = 0, radius = 0, default_radius = 0;
  const double plain = errors("express(paper=true,s=64)", &plain_radius);
  const double apart = errors("express(paper=true,s=32,heavy=24,heavy_keys=1)", &radius);
  EXPECT_LT(radius, 0.7 * plain_radius);
  EXPECT_LT(apart, 0.5 * plain);
  // As it is by default: as many rows, the threshold greedy, half of the heavy rows by mass.
  EXPECT_LT(errors("express(s=64)", &default_radius), 0.5 * plain);
  EXPECT_LT(default_radius, 0.7 * plain_radius);
}

std::string described(const std::string& policy) {
  return Place(policy + "+f32,sink=2,window=8").cache.describe();
}

TEST(Heavy, DefaultsSayHowManyAndThePapersFormHasNone) {
  EXPECT_EQ(described("express(s=96)"), described("express(s=32,heavy=48)"));
  EXPECT_EQ(described("express(s=100)"), described("express(s=32,heavy=52)"));
  EXPECT_EQ(described("balancekv(budget=400)"), described("balancekv(budget=200,heavy=200)"));
  // The rows for a budget's blocks go first.
  EXPECT_EQ(described("balancekv(budget=24)"), described("balancekv(budget=21,heavy=3)"));
  EXPECT_EQ(described("balancekv"), described("balancekv(rate=0.125,heavy=12.5%)"));
  EXPECT_EQ(described("balancekv(rate=1)"), described("balancekv(rate=1,heavy=0)"));
  EXPECT_EQ(described("uniform(budget=20)"), described("uniform(budget=20,heavy=0)"));
  const auto papers = [](const std::string& policy) {
    std::string text = described(policy);
    const size_t at = text.find(",paper=true");
    EXPECT_NE(at, std::string::npos) << text;
    return text.erase(std::min(at, text.size()), 11);
  };
  EXPECT_EQ(papers("express(paper=true,s=64)"),
            described("express(s=64,heavy=0,balance=1,temp=1,beta=1,centre=false)"));
  EXPECT_EQ(papers("express(paper=true,s=64,heavy=24,temp=0.5)"),
            described("express(s=64,heavy=24,balance=1,temp=0.5,beta=1,centre=false)"));
  EXPECT_EQ(papers("balancekv(paper=true)"),
            described("balancekv(heavy=0,balance=1,temp=1,beta=0,centre=false,walk=exact)"));
  EXPECT_EQ(described("express(paper=false,s=64)"), described("express(s=64)"));
  EXPECT_THROW(described("express(s=20)"), Error) << "a third of them is no coreset";
}

// s is a promise: no more body rows at any time, however many come at once.
TEST(Heavy, ByDefaultExpressHoldsNoMoreThanItsSize) {
  const Stream s(900);
  for (const size_t size : {24, 63, 96, 200}) {
    Place place("express(s=" + std::to_string(size) + ")+f32,sink=2,window=8");
    size_t most = 0;
    for (size_t t = 0; t < 900; t += 7) {
      place.step(s, t, std::min<size_t>(t + 7, 900), 7);
      most = std::max(most, place.cache.held(0, 0).body);
    }
    EXPECT_LE(most, size);
    EXPECT_GT(most, size * 3 / 4);
  }
}

// The attention of the last queries counts, not that of earlier ones.
TEST(Heavy, OldFameIsForgotten) {
  Stream s(900);
  for (size_t t = 0; t < 900; ++t)
    for (size_t h = 0; h < 2; ++h) {
      s.q[(t * 2 + h) * kDim] = t < 300 ? 8.0f : 0.0f;
      s.q[(t * 2 + h) * kDim + 1] = t < 300 ? 0.0f : 8.0f;
    }
  for (size_t t = 0; t < 300; ++t) s.k[t * kDim + 1] = 0;
  for (size_t t = 10; t < 20; ++t) s.k[t * kDim] = 6;        // famous before 300
  for (size_t t = 320; t < 340; ++t) s.k[t * kDim + 1] = 6;  // and after
  Place place(
      "uniform(budget=4,heavy=24,heavy_keys=0,heavy_interval=16,heavy_queries=8)+f32,sink=2,window="
      "8");
  place.step(s, 0, 900, 30);
  const HeadRows held = place.cache.rows(0, 0);
  size_t old = 0, fresh = 0;
  for (int64_t p : held.positions) old += p >= 10 && p < 20, fresh += p >= 320 && p < 340;
  EXPECT_EQ(fresh, 20u);
  EXPECT_LE(old, 2u);
}

TEST(Heavy, WeightsStandForAllRows) {
  const Stream s(1200);
  std::vector<std::string> policies(std::begin(kPolicies), std::end(kPolicies));
  policies.emplace_back(kByKey);
  for (const std::string& policy : policies) {
    Place place(policy);
    for (size_t n : {5, 40, 70, 100, 333, 1200}) {
      place.step(s, place.cache.tokens(0), n, 32);
      double sum = 0;
      for (float w : place.cache.rows(0, 0).log_weights) sum += std::exp(double{w});
      EXPECT_NEAR(sum, static_cast<double>(n), 1e-3 * static_cast<double>(n)) << policy;
    }
  }
}

TEST(Heavy, LedgerEstimateClonesThreadsAndChunks) {
  const Stream s(600);
  std::vector<std::string> policies(std::begin(kPolicies), std::end(kPolicies));
  policies.emplace_back(kByKey);
  for (const std::string& policy : policies) {
    Place place(policy), threads(policy, 1, 3);
    std::unique_ptr<KvCache> copy;
    for (size_t t = 0; t < 600; t += 20) {
      place.step(s, t, t + 20, 20);
      threads.step(s, t, t + 20, 20);
      const Ledger ledger = place.cache.ledger(), most = place.cache.estimate(t + 20);
      size_t counted = 0;
      for (MemoryKind kind : {MemoryKind::kPayload, MemoryKind::kMetadata, MemoryKind::kShared})
        counted += place.memory.bytes(kind);
      if (!copy) {
        ASSERT_EQ(ledger.cache_bytes() + ledger.slack, counted) << policy;
      }
      EXPECT_LE(ledger.rows_kept, most.rows_kept) << policy << t;
      EXPECT_LE(ledger.cache_bytes(), most.cache_bytes()) << policy << t;
      if (t == 300) copy = place.cache.clone();
    }
    EXPECT_EQ(place.cache.rows(0, 0).positions, threads.cache.rows(0, 0).positions);
    std::vector<float> out(20 * 2 * kDim);
    for (size_t t = 320; t < 600; t += 20)
      copy->step(0, out.data(), s.q.data() + t * 2 * kDim, s.k.data() + t * kDim,
                 s.v.data() + t * kDim, 20);
    EXPECT_EQ(copy->rows(0, 0).positions, place.cache.rows(0, 0).positions) << policy;
    EXPECT_EQ(copy->rows(0, 0).log_weights, place.cache.rows(0, 0).log_weights) << policy;
    // Without queries nothing depends on chunks.
    Place whole(policy), parts(policy);
    whole.cache.append(0, s.k.data(), s.v.data(), 600);
    for (size_t t = 0; t < 600; t += 7)
      parts.cache.append(0, s.k.data() + t * kDim, s.v.data() + t * kDim,
                         std::min<size_t>(7, 600 - t));
    EXPECT_EQ(whole.cache.rows(0, 0).positions, parts.cache.rows(0, 0).positions) << policy;
    EXPECT_EQ(whole.cache.rows(0, 0).log_weights, parts.cache.rows(0, 0).log_weights) << policy;
  }
}

TEST(Heavy, IsDescribedAndRefusedWhereItCannotBe) {
  Place place("uniform(budget=32,heavy=10%),sink=0,window=8");
  EXPECT_NE(place.cache.describe().find(
                "uniform(budget=32,weights=true,heavy=168,heavy_keys=0.5,heavy_interval=32,"
                "heavy_queries=256)"),
            std::string::npos)
      << place.cache.describe();
  EXPECT_THROW(Place("balancekv(mode=stream,heavy=32)"), Error);
  EXPECT_THROW(Place("uniform(heavy=0%)"), Error);
  EXPECT_THROW(Place("uniform(heavy=10,heavy_queries=0)"), Error);
}

}  // namespace
}  // namespace pith
