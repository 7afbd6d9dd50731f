// The cache beyond the contract suite: overrides, budgets in bytes, limits, sliding windows,
// positions inside the cache, long streams.

#include <gtest/gtest.h>

#include <cmath>

#include "cache_harness.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

std::string refusal(const Shape& shape, const std::string& policy, const Rope* rope = nullptr) {
  try {
    Harness h(shape, policy, 1, 1, "", rope);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(KvCache, RulesReachTheirLayersAndHeads) {
  Shape shape;
  shape.layers = 3;
  const Rows rows(shape, 200, 1);
  Harness h(shape, "local(window=32);layers=-1:exact;layers=0/heads=1:uniform(budget=16),window=8");
  h.append(rows, 0, 200, 50);
  const auto held = [&](int layer, int head) {
    return h.cache().rows(layer, head).positions.size();
  };
  EXPECT_EQ(held(0, 0), 32u);
  EXPECT_EQ(held(0, 1), 16u + 8 + 4);
  EXPECT_EQ(held(1, 0), 32u);
  EXPECT_EQ(held(1, 1), 32u);
  EXPECT_EQ(held(2, 0), 200u);
  EXPECT_EQ(h.cache().describe(),
            "layers 0-0: heads 0: local(window=32)+k:f16+v:f16,sink=0,window=32 | heads 1: "
            "uniform(budget=16,weights=true)+k:f16+v:f16,sink=4,window=8\n"
            "layers 1-1: local(window=32)+k:f16+v:f16,sink=0,window=32\n"
            "layers 2-2: exact+k:f16+v:f16,sink=0,window=0");
}

TEST(KvCache, RefusesWhatCannotBe) {
  const Shape shape;
  const auto says = [&](const std::string& policy, const std::string& reason) {
    EXPECT_NE(refusal(shape, policy).find(reason), std::string::npos) << refusal(shape, policy);
  };
  says("exact;layers=1:local", "names none of the 1 layers");
  says("exact;heads=0-2:local", "names none of the 2 heads");
  says("local(window=0)", "is not a number of rows");
  says("local(window=10),window=5", "has its own window");
  says("uniform(rate=0)", "a number from");
  says("uniform(rate=2)", "a number from");
  says("uniform(rate=0.5,budget=10)", "both given");
  says("uniform(budget=1KiB)", "holds no body row");
  says("streaming_llm(rope=cache)", "needs the model's RoPE");
  says("streaming_llm(rope=no)", "one of true, cache");
  Shape odd;
  odd.head_dim = 72;
  EXPECT_NE(refusal(odd, "exact").find("multiples of 16"), std::string::npos);
}

TEST(KvCache, ABudgetInBytesIsKept) {
  Shape shape;
  shape.layers = 2;
  shape.context = 5000;
  const Rows rows(shape, 3000, 2);
  for (const char* policy :
       {"uniform(budget=256KiB)", "local(window=256KiB)", "streaming_llm(window=0.25MiB)",
        "uniform(budget=256KiB)+f32,sink=0"}) {
    Harness h(shape, policy);
    h.append(rows, 0, 3000, 256);
    const Ledger ledger = h.cache().ledger();
    EXPECT_LE(ledger.cache_bytes(), 256u << 10) << policy;
    EXPECT_GT(ledger.cache_bytes(), 250u << 10) << policy << " leaves the budget unused";
  }
}

TEST(KvCache, AShareIsOfTheContext) {
  Shape shape;
  shape.context = 400;
  const Rows rows(shape, 400, 3);
  Harness h(shape, "uniform(budget=25%),sink=0,window=0");
  h.append(rows, 0, 400, 400);
  EXPECT_EQ(h.cache().rows(0, 0).positions.size(), 100u);
}

TEST(KvCache, PassingTheMemoryLimitIsAnErrorAndLeavesNothingBehind) {
  const Shape shape;
  const Rows rows(shape, 2000, 4);
  Harness h(shape, "exact");
  h.memory().set_limit(300 << 10);
  EXPECT_THROW(h.append(rows, 0, 2000, 100), Error);
  EXPECT_LE(h.memory().peak(), 300u << 10);
}

TEST(KvCache, DroppedRowsGiveTheirMemoryBack) {
  Shape shape;
  const Rows rows(shape, 4000, 5);
  Harness h(shape, "uniform(budget=100)");
  size_t most = 0;
  for (size_t t = 0; t < 4000; t += 100) {
    h.append(rows, t, t + 100, 100);
    most = std::max(most, h.memory().bytes(MemoryKind::kPayload));
  }
  // 168 rows per head at most, 256 bytes each, and what rounding to pages costs.
  EXPECT_LE(most, size_t{2} * 2 * (168 * 128 + 4096));
}

TEST(KvCache, AStreamOf100000RowsStaysFlat) {
  Shape shape;
  shape.head_dim = 16;
  shape.group = 1;
  shape.context = 100000;
  const Rows rows(shape, 1000, 6);
  for (const char* policy : {"streaming_llm(window=1020)", "uniform(budget=1000)"}) {
    Harness h(shape, policy);
    size_t early = 0;
    for (size_t t = 0; t < 100000; t += 500) {
      h.step(rows, t % 1000, t % 1000 + 500, 500);
      if (t == 9500) {
        early = h.memory().total();
        h.memory().reset_peak();
      }
    }
    EXPECT_LE(h.memory().total(), early * 102 / 100) << policy;
    EXPECT_EQ(h.cache().rows(0, 0).positions.back(), 99999);
  }
}

TEST(KvCache, SlidingLayersSeeAndHoldTheirWindowOnly) {
  const Shape shape;
  constexpr int64_t kWindow = 50;
  constexpr size_t kRows = 900;
  const Rows rows(shape, kRows, 7);
  ThreadPool pool(1);
  MemoryCounter memory(0, true);
  const Context context{pool, memory, kernels_for("")};
  const CacheShape cs{1, shape.query_heads(), shape.kv_heads, shape.head_dim, {kWindow}, kRows};
  // A budget that holds all rows that are seen loses none of them (Rule::keeps_newest), and one of
  // more rows than `exact` has there holds what that holds.
  for (const char* policy :
       {"exact+f32", "streaming_llm(window=200)+f32", "snapkv(budget=50,interval=16)+f32,window=8",
        "h2o(budget=57)+f32,window=0", "keydiff(budget=51,interval=1)+f32",
        "adakv(budget=50,interval=7,by=h2o,safeguard=0)+f32,window=4", "keydiff(budget=500)+f32",
        "express(s=512)+f32", "balancekv(rate=0.5)+f32", "uniform(rate=0.5)+f32",
        "buzz(T=400)+f32"})
    for (size_t chunk : {1, 33, 128}) {
      KvCache cache(context, cs, Policy::parse(policy), 1, nullptr);
      std::vector<float> out(kRows * shape.q_size());
      for (size_t t = 0; t < kRows; t += chunk) {
        const size_t n = std::min(chunk, kRows - t);
        cache.step(0, out.data() + t * shape.q_size(), rows.q.data() + t * shape.q_size(),
                   rows.k.data() + t * shape.kv_size(), rows.v.data() + t * shape.kv_size(), n);
      }
      for (size_t t : {0, 10, 49, 50, 51, 300, 899}) {
        HeadRows seen;
        const int64_t first = std::max<int64_t>(0, static_cast<int64_t>(t) - kWindow + 1);
        for (int64_t p = first; p <= static_cast<int64_t>(t); ++p) seen.positions.push_back(p);
        seen.log_weights.assign(seen.positions.size(), 0);
        const auto expected = test::oracle_all(shape, rows, t, t + 1, {seen, seen});
        const std::vector<float> got(out.begin() + t * shape.q_size(),
                                     out.begin() + (t + 1) * shape.q_size());
        EXPECT_LT(test::relative_error(got, expected), 1e-5) << policy << " at " << t;
      }
      EXPECT_LE(cache.rows(0, 0).positions.size(), kWindow + 256u) << "rows nobody can see";
    }
}

TEST(KvCache, RopeCacheCountsPositionsInsideTheCache) {
  const Shape shape;
  constexpr size_t kRows = 200, kSink = 4, kWindow = 28;
  Rows rows(shape, kRows + 1, 8);
  const Rope rope(static_cast<size_t>(shape.head_dim), 10000.0);
  const Kernels& scalar = kernels_for("scalar");
  const auto dim = static_cast<size_t>(shape.head_dim);
  const auto turned = [&](const Rows& in, const std::vector<int64_t>& positions) {
    Rows out = in;
    for (size_t t = 0; t < positions.size(); ++t) {
      for (size_t h = 0; h < shape.q_size() / dim; ++h)
        rope.rotate(scalar, out.q.data() + t * shape.q_size() + h * dim, positions[t]);
      for (size_t g = 0; g < shape.kv_size() / dim; ++g)
        rope.rotate(scalar, out.k.data() + t * shape.kv_size() + g * dim, positions[t]);
    }
    return out;
  };
  std::vector<int64_t> truth(kRows + 1), inside(kRows + 1);
  for (size_t t = 0; t <= kRows; ++t) {
    truth[t] = static_cast<int64_t>(t);
    // Held are: the sink at 0..3, the window behind it, then the query.
    inside[t] = t < kSink ? truth[t] : truth[t] - static_cast<int64_t>(kRows - kSink - kWindow);
  }
  Harness h(shape, "streaming_llm(window=28,rope=cache)+f32", 1, 1, "", &rope);
  const Rows stored = turned(rows, truth);
  h.append(stored, 0, kRows, 64);
  HeadRows held = h.cache().rows(0, 0);
  ASSERT_EQ(held.positions.size(), kSink + kWindow);
  const auto expected =
      test::oracle_all(shape, turned(rows, inside), kRows, kRows + 1, {held, held});
  EXPECT_LT(test::relative_error(h.attend(stored, kRows, kRows + 1), expected), 2e-5);
  Harness plain(shape, "streaming_llm(window=28)+f32", 1, 1, "", &rope);
  plain.append(stored, 0, kRows, 64);
  EXPECT_GT(test::relative_error(plain.attend(stored, kRows, kRows + 1), expected), 1e-3)
      << "the two position rules must differ for this test to mean anything";
}

TEST(KvCache, RopeCacheMovesProtectedRowsUpToo) {
  const Shape shape;
  constexpr int64_t kRows = 200, kSink = 4, kWindow = 28;
  const Rows rows(shape, kRows + 1, 8);
  const Rope rope(static_cast<size_t>(shape.head_dim), 10000.0);
  const Kernels& scalar = kernels_for("scalar");
  const auto dim = static_cast<size_t>(shape.head_dim);
  const auto turned = [&](const std::vector<int64_t>& positions) {
    Rows out = rows;
    for (size_t t = 0; t < positions.size(); ++t) {
      for (size_t h = 0; h < shape.q_size() / dim; ++h)
        rope.rotate(scalar, out.q.data() + t * shape.q_size() + h * dim, positions[t]);
      for (size_t g = 0; g < shape.kv_size() / dim; ++g)
        rope.rotate(scalar, out.k.data() + t * shape.kv_size() + g * dim, positions[t]);
    }
    return out;
  };
  // Held: 0-3, 50-59, 100-102, 185-189 inside the window, and the window's 28 other rows.
  const std::vector<TokenRange> ranges = {{0, 3}, {50, 60}, {100, 103}, {185, 190}};
  std::vector<int64_t> kept, truth, inside(kRows + 1);
  for (int64_t t = 0; t <= kRows; ++t) {
    truth.push_back(t);
    bool stays = t < kSink || t >= kRows - kWindow - 5;
    for (const TokenRange& r : ranges) stays |= t >= r.first && t < r.last;
    if (!stays) continue;
    inside[static_cast<size_t>(t)] = static_cast<int64_t>(kept.size());
    kept.push_back(t);
  }
  Harness h(shape, "streaming_llm(window=28,rope=cache)+f32", 1, 1, "", &rope);
  h.cache().protect(ranges);
  const Rows stored = turned(truth);
  h.append(stored, 0, kRows, 64);
  const HeadRows held = h.cache().rows(0, 0);
  kept.pop_back();  // the query's own
  ASSERT_EQ(held.positions, kept);
  const auto expected = test::oracle_all(shape, turned(inside), kRows, kRows + 1, {held, held});
  EXPECT_LT(test::relative_error(h.attend(stored, kRows, kRows + 1), expected), 2e-5);
}

// Selectors of one layer that watch different numbers of queries keep what each keeps alone.
TEST(KvCache, HeadsOfALayerMayWatchDifferentNumbersOfQueries) {
  const Shape shape;
  const Rows rows(shape, 300, 10);
  const std::string end = ",interval=16),sink=2,window=8";
  const std::string one = "h2o(budget=20" + end, two = "snapkv(queries=5,budget=20" + end;
  for (size_t chunk : {1, 3, 64}) {
    Harness both(shape, one + ";heads=1:" + two), first(shape, one), second(shape, two),
        third(shape, one + ";heads=1:exact");
    for (Harness* h : {&both, &first, &second, &third}) h->step(rows, 0, 300, chunk);
    EXPECT_EQ(both.cache().rows(0, 0).positions, first.cache().rows(0, 0).positions) << chunk;
    EXPECT_EQ(both.cache().rows(0, 1).positions, second.cache().rows(0, 1).positions) << chunk;
    EXPECT_EQ(third.cache().rows(0, 0).positions, first.cache().rows(0, 0).positions) << chunk;
  }
}

TEST(Uniform, WeightsMakeSumsUnbiased) {
  Shape shape;
  shape.head_dim = 16;
  shape.group = 1;
  constexpr size_t kRows = 400;
  const Rows rows(shape, kRows, 9);
  for (const char* policy :
       {"uniform(rate=0.25),sink=0,window=0", "uniform(budget=100),sink=0,window=0"}) {
    constexpr int kSeeds = 400;
    std::vector<double> inclusion(kRows), total;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      Harness h(shape, policy, seed);
      h.append(rows, 0, kRows, 100);
      const HeadRows held = h.cache().rows(0, 0);
      double sum = 0;
      for (size_t i = 0; i < held.positions.size(); ++i) {
        ++inclusion[static_cast<size_t>(held.positions[i])];
        sum += std::exp(held.log_weights[i]);
      }
      total.push_back(sum);
    }
    double mean = 0;
    for (double x : total) mean += x / kSeeds;
    // One draw's sum has standard deviation sqrt(n (1-r)/r) at most: 35 rows.
    EXPECT_NEAR(mean, kRows, 4 * 35 / std::sqrt(kSeeds)) << policy;
    const double deviation = std::sqrt(kSeeds * 0.25 * 0.75);
    for (double n : inclusion) EXPECT_NEAR(n, kSeeds * 0.25, 4.5 * deviation);
  }
}

}  // namespace
}  // namespace pith
