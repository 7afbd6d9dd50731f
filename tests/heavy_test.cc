// Heavy rows apart: the rows with recent mass stay with weight 1, the others are sampled, and
// together they stand for all.

#include "compress/heavy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

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
    "balancekv(rate=0.25,b=16,heavy=24,heavy_interval=16,heavy_queries=8)+f32,sink=2,window=8"};

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

// What the last queries look at counts, not what earlier ones did.
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
  Place place("uniform(budget=4,heavy=24,heavy_interval=16,heavy_queries=8)+f32,sink=2,window=8");
  place.step(s, 0, 900, 30);
  const HeadRows held = place.cache.rows(0, 0);
  size_t old = 0, fresh = 0;
  for (int64_t p : held.positions) old += p >= 10 && p < 20, fresh += p >= 320 && p < 340;
  EXPECT_EQ(fresh, 20u);
  EXPECT_LE(old, 2u);
}

TEST(Heavy, WeightsStandForAllRows) {
  const Stream s(1200);
  for (const std::string policy : kPolicies) {
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
  for (const std::string policy : kPolicies) {
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
                "uniform(budget=32,weights=true,heavy=200,heavy_interval=512,heavy_queries=256)"),
            std::string::npos)
      << place.cache.describe();
  EXPECT_THROW(Place("balancekv(mode=stream,heavy=32)"), Error);
  EXPECT_THROW(Place("uniform(heavy=0)"), Error);
  EXPECT_THROW(Place("uniform(heavy=10,heavy_queries=0)"), Error);
}

}  // namespace
}  // namespace pith
