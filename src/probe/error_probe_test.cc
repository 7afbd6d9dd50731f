// The error probe against the true error of the same steps, over many samples.

#include "probe/error_probe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cache_harness.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Harness;
using test::Rows;
using test::Shape;

constexpr size_t kBefore = 700, kSteps = 9;
const ErrorProbeOptions kProbe{.rows = 128, .every = 4};

struct Outcome {
  AttentionError error;
  double truth = 0;  ///< of the steps compared: the first, fifth and ninth
};

// Rows enter in chunks, then steps of one token are compared.
Outcome run(const Shape& shape, const Rows& rows, const std::string& policy, uint64_t seed,
            const ErrorProbeOptions& options = kProbe, size_t chunk = 100,
            const Rope* rope = nullptr) {
  Harness h(shape, policy, 1, 1, "", rope), exact(shape, "exact+f32");
  h.cache().start_error_probe(options, seed);
  h.append(rows, 0, kBefore, chunk);
  exact.append(rows, 0, kBefore, kBefore);
  h.cache().end_prefill();
  double error = 0, size = 0;
  for (size_t t = kBefore; t < kBefore + kSteps; ++t) {
    const auto got = h.step(rows, t, t + 1, 1), expected = exact.step(rows, t, t + 1, 1);
    if ((t - kBefore) % options.every != 0) continue;
    error *= 31.0 / 32, size *= 31.0 / 32;
    for (size_t i = 0; i < got.size(); ++i) {
      error += std::pow(double{got[i]} - expected[i], 2);
      size += double{expected[i]} * expected[i];
    }
  }
  const auto errors = h.cache().attention_errors();
  EXPECT_EQ(errors.size(), 1u);
  return {errors[0], std::sqrt(error / size)};
}

TEST(ErrorProbe, ASampleOfAllRowsIsTheTruth) {
  const Shape shape;
  const Rows rows(shape, kBefore + kSteps, 1);
  for (const char* policy :
       {"streaming_llm(window=60)", "uniform(budget=100),sink=4,window=16",
        "uniform(budget=100,weights=false)", "balancekv(heavy=0,rate=0.25,b=64)",
        "balancekv(mode=stream,b=32,rate=0.25)", "h2o(budget=50)+f32", "express(heavy=0,s=64)",
        "buzz(T=100)", "buzz(T=100,logn=true)"}) {
    const Outcome o = run(shape, rows, policy, 1, {.rows = 4096, .every = 4});
    EXPECT_EQ(o.error.steps, 3u);
    EXPECT_NEAR(o.error.estimate, o.truth, 0.01 * o.truth + 1e-3) << policy;
    EXPECT_NEAR(o.error.low, o.error.high, 1e-6) << policy << ": nothing is left open";
  }
}

TEST(ErrorProbe, ASampleOfAllRowsIsTheTruthOfCodesToo) {
  const Shape shape;
  const Rows rows(shape, kBefore + kSteps, 1);
  const Rope rope(shape.head_dim, 10000.0);
  for (const char* policy :
       {"exact+int8", "exact+int4", "exact+kivi", "exact+qjl(paper=true)",
        "exact+turboquant(bits=3)", "exact+kvquant(bits=3)", "exact+ladder(rows=128)"}) {
    const Outcome o = run(shape, rows, policy, 1, {.rows = 4096, .every = 4}, 100, &rope);
    EXPECT_NEAR(o.error.estimate, o.truth, 0.02 * o.truth + 1e-3) << policy;
    EXPECT_GT(o.truth, 1e-3) << policy;
  }
}

TEST(ErrorProbe, IntervalsOfCodesHoldTheTruth) {
  const Shape shape{.head_dim = 64, .group = 2, .kv_heads = 2};
  const Rope rope(shape.head_dim, 10000.0);
  for (const char* policy : {"exact+int4", "exact+kivi", "snapkv(budget=200)+int4"}) {
    size_t covered = 0;
    constexpr size_t kTrials = 16;
    for (uint64_t seed = 0; seed < kTrials; ++seed) {
      const Rows rows(shape, kBefore + kSteps, 50 + static_cast<uint32_t>(seed));
      const Outcome o = run(shape, rows, policy, seed, kProbe, 100, &rope);
      covered += o.error.low <= o.truth && o.truth <= o.error.high;
      EXPECT_NEAR(o.error.estimate, o.truth, 0.5 * o.truth) << policy;
    }
    EXPECT_GE(covered, kTrials * 13 / 16) << policy << ", of 95% intervals";
  }
}

TEST(ErrorProbe, ExactRowsHaveNone) {
  const Shape shape;
  const Rows rows(shape, kBefore + kSteps, 2);
  const Outcome o = run(shape, rows, "exact", 3);
  EXPECT_LT(o.error.high, 0.002) << "what the cache holds adds no noise";
}

TEST(ErrorProbe, MeanAndIntervalsOverSamples) {
  const Shape shape{.head_dim = 32, .group = 2, .kv_heads = 2};
  const Rows rows(shape, kBefore + kSteps, 4);
  constexpr size_t kSeeds = 200;
  for (const char* policy :
       {"streaming_llm(window=60)", "uniform(budget=150),sink=4,window=16", "snapkv(budget=100)"}) {
    double mean = 0, squares = 0, truth = 0;
    size_t covered = 0, above = 0;
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      const Outcome o = run(shape, rows, policy, 1000 + seed);
      const double ratio = o.error.estimate * o.error.estimate;
      mean += ratio / kSeeds, squares += ratio * ratio / kSeeds, truth = o.truth;
      covered += o.error.low <= o.truth && o.truth <= o.error.high;
      above += o.error.low > o.truth;
    }
    // A ratio of estimates is biased by about one part in the sample's rows: allow 3%.
    const double error = std::sqrt((squares - mean * mean) / kSeeds);
    EXPECT_NEAR(mean, truth * truth, 4 * error + 0.03 * truth * truth) << policy;
    EXPECT_GT(error, 0) << policy;
    EXPECT_GE(covered, kSeeds * 85 / 100) << policy << ", of 95% intervals";
    EXPECT_LE(above, kSeeds * 8 / 100) << policy << ", of 2.5%";
  }
}

TEST(ErrorProbe, ChunksChangeNothingAndClonesGoOnAlike) {
  const Shape shape;
  const Rows rows(shape, kBefore + kSteps, 7);
  const char* policy = "streaming_llm(window=60)";
  const AttentionError a = run(shape, rows, policy, 8, kProbe, 1).error;
  const AttentionError b = run(shape, rows, policy, 8, kProbe, 333).error;
  EXPECT_EQ(a.estimate, b.estimate);
  EXPECT_EQ(a.low, b.low);

  Harness h(shape, policy);
  h.cache().start_error_probe(kProbe, 8);
  h.append(rows, 0, kBefore, 50);
  h.step(rows, kBefore, kBefore + 2, 1);
  const auto copy = h.cache().clone();
  const auto go_on = [&](KvCache& cache) {
    std::vector<float> out(shape.q_size());
    for (size_t t = kBefore + 2; t < kBefore + kSteps; ++t)
      cache.step(0, out.data(), rows.q.data() + t * shape.q_size(),
                 rows.k.data() + t * shape.kv_size(), rows.v.data() + t * shape.kv_size(), 1);
    return cache.attention_errors()[0];
  };
  const AttentionError mine = go_on(h.cache()), theirs = go_on(*copy);
  EXPECT_EQ(mine.estimate, theirs.estimate);
  EXPECT_EQ(mine.steps, 3u);
  EXPECT_EQ(theirs.steps, 3u);
}

TEST(ErrorProbe, TheAnswerStaysAndTheRowsAreCounted) {
  const Shape shape;
  const Rows rows(shape, kBefore + kSteps, 9);
  Harness with(shape, "h2o(budget=60)"), without(shape, "h2o(budget=60)");
  with.cache().start_error_probe(kProbe, 1);
  for (Harness* h : {&with, &without}) h->append(rows, 0, kBefore, 64);
  EXPECT_EQ(with.step(rows, kBefore, kBefore + kSteps, 1),
            without.step(rows, kBefore, kBefore + kSteps, 1));
  const size_t bytes = with.memory().bytes(MemoryKind::kProbe);
  const size_t rows_bytes = 2 * 128 * (2 * 64 * 2 + 16);
  EXPECT_GE(bytes, rows_bytes);
  EXPECT_LE(bytes, rows_bytes * 5 / 4) << "growth by eighths";
  EXPECT_EQ(without.memory().bytes(MemoryKind::kProbe), 0u);
  EXPECT_TRUE(without.cache().attention_errors().empty());
}

TEST(ErrorProbe, RefusesWhatCannotBe) {
  const Rope rope(64, 10000.0);
  Harness h(Shape{}, "exact"), moved(Shape{}, "streaming_llm(rope=cache)", 1, 1, "", &rope);
  EXPECT_THROW(h.cache().start_error_probe({.rows = 63}, 0), Error);
  EXPECT_THROW(h.cache().start_error_probe({.rows = 64, .every = 0}, 0), Error);
  EXPECT_THROW(h.cache().start_error_probe({.rows = 64, .max_error = -1}, 0), Error);
  EXPECT_THROW(moved.cache().start_error_probe({.rows = 64}, 0), Error);
}

TEST(ErrorProbe, BeforeTheFirstComparisonNothingIsKnown) {
  Harness h(Shape{}, "exact");
  h.cache().start_error_probe(kProbe, 0);
  EXPECT_EQ(h.cache().attention_errors()[0].steps, 0u);
}

}  // namespace
}  // namespace pith
