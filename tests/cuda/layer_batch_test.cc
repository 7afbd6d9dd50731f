// Steps of many layers' caches in one call: the bits of each alone.

#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "layer_pair.h"

namespace pith::cuda {
namespace {

constexpr Layout kPlain{DType::kF32, false}, kHalf{DType::kF16, true};

/// Caches of one stream that step together, and a copy of each that steps alone.
class Batch {
 public:
  Batch(const std::vector<LayerCase>& cases, const Layout& layout)
      : pair_(cases.front(), layout), layout_(layout) {
    uint32_t seed = 0;
    for (const LayerCase& c : cases) {
      LayerCacheOptions o = layer_options(c);
      o.seed += seed;  // as other sequences have
      LayerCache cache(pair_.runtime(), o);
      pair_.follow(cache);
      pair_.step_gpu(cache, 30 + 17 * seed, 100 + seed);  // prompts of different lengths
      if (seed % 2 == 0) cache.end_prompt();
      alone_.push_back(cache.clone());
      together_.push_back(std::move(cache));
      ++seed;
    }
  }

  /// tokens[i] of cache i; the same bits come out, and are held.
  void step(const std::vector<size_t>& tokens) {
    std::deque<LayerPair::Given> given;  // steps name what is in them
    std::vector<LayerStep> steps;
    std::vector<std::vector<float>> want;
    for (size_t i = 0; i < together_.size(); ++i) {
      const uint32_t seed = ++draws_;
      want.push_back(pair_.step_gpu(alone_[i], tokens[i], seed));
      given.emplace_back(pair_, tokens[i], seed);
      steps.push_back(given.back().step_of(together_[i]));
    }
    pair_.runtime()->step(steps);
    for (size_t i = 0; i < given.size(); ++i)
      EXPECT_EQ(given[i].out.get(), want[i]) << "of cache " << i << " in step " << draws_;
  }
  void step() { step(std::vector<size_t>(together_.size(), 1)); }
  void expect_same_state() {
    for (size_t i = 0; i < together_.size(); ++i)
      EXPECT_EQ(together_[i].save(), alone_[i].save()) << "of cache " << i;
  }
  LayerCache& cache(size_t i) { return together_[i]; }
  LayerCache& alone(size_t i) { return alone_[i]; }

 private:
  LayerPair pair_;
  Layout layout_;
  std::vector<LayerCache> together_, alone_;
  uint32_t draws_ = 1000;
};

const char* const kPolicies[] = {
    "exact",
    "exact+int4,window=20",
    "exact+kivi(bits=4)",
    "exact+turboquant(bits=4)",
    "streaming_llm(window=37,rope=cache),sink=7",
    "knorm(budget=40,interval=24)+int8",
    "snapkv(budget=40,interval=20,queries=7,kernel=3),sink=4,window=16",
    "adakv(budget=40,interval=20),sink=4,window=16",
    "h2o(budget=30,interval=50,decay=0.5),sink=2,window=30",
    "uniform(rate=0.3)",
    "express(heavy=0,s=32)+int4,window=20",
    "express(heavy=16,s=32),window=20",
    "knorm(budget=40,interval=24);heads=0:exact",
};

TEST(CudaLayerBatch, OneCallGivesTheBitsOfManyUnderEveryPolicy) {
  PITH_NEEDS_GPU();
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    Batch batch(std::vector<LayerCase>(3, LayerCase{policy}), kPlain);
    for (int t = 0; t < 30; ++t) batch.step();
    batch.expect_same_state();
  }
}

TEST(CudaLayerBatch, PoliciesLengthsAndLayoutsMayDiffer) {
  PITH_NEEDS_GPU();
  std::vector<LayerCase> cases;
  for (const char* policy : kPolicies) cases.push_back({policy});
  cases[0].slides = 20;
  cases[1].sink_logits = {1, -1, 0.5f, 2};
  cases[2].scale = 0.25;
  cases.insert(cases.end(), cases.begin(), cases.end());  // more than a launch copies
  Batch batch(cases, kHalf);
  for (int t = 0; t < 8; ++t) batch.step();
  // A prompt among tokens, and a copy that goes on for one of them.
  std::vector<size_t> tokens(cases.size(), 1);
  tokens[1] = 9;
  batch.step(tokens);
  batch.cache(2) = batch.cache(2).clone();
  for (int t = 0; t < 8; ++t) batch.step();
  batch.expect_same_state();
}

TEST(CudaLayerBatch, TheProbeMeasuresAsAlone) {
  PITH_NEEDS_GPU();
  LayerCase c{"knorm(budget=16,interval=8),sink=0,window=8"};
  c.probe_rows = 64;
  Batch batch({c, c, {"exact"}}, kPlain);
  for (int t = 0; t < 20; ++t) batch.step();
  const auto got = batch.cache(1).attention_error(), want = batch.alone(1).attention_error();
  ASSERT_TRUE(got && want);
  EXPECT_GT(got->steps, 5u);
  EXPECT_EQ(got->steps, want->steps);
  EXPECT_EQ(got->estimate, want->estimate);
  EXPECT_FALSE(batch.cache(2).attention_error());
}

}  // namespace
}  // namespace pith::cuda
