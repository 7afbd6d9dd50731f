// A policy's plan of a layer on the GPU, which the host makes by the policy alone: none of these
// tests needs a GPU.

#include <gtest/gtest.h>

#include <algorithm>

#include "cache/cuda/layer_plan.h"
#include "plan/best_rule.h"

namespace pith::cuda {
namespace {

LayerPlan plan(const std::string& policy, int layer = 0) {
  const CacheShape shape{4, 4, 2, 64, {}, 1000};
  const ResolvedPolicy resolved(Policy::parse(policy), shape, 3, Device::kCuda);
  return plan_layer(resolved.layer(layer).front(), {0, 2});
}

TEST(CudaPlans, AreTheCpusSchedules) {
  EXPECT_TRUE(plan("exact").straight);
  EXPECT_TRUE(plan("exact,sink=4,window=9").straight);
  EXPECT_EQ(plan("exact+bf16").dtype, DType::kBF16);
  const struct {
    const char *policy, *codec;
    size_t sink, window, block;
  } kCases[] = {{"exact+kivi,sink=0", "kivi2", 0, 128, 32},
                {"exact+kivi(bits=4),sink=3,window=0", "kivi4", 3, 0, 32},
                {"exact+int8,dtype=bf16,sink=0", "int8", 0, 128, 32},
                {"exact+k:int4+v:int4,window=7,sink=0", "int4", 0, 7, 32},
                {"streaming_llm(window=60)", "", 4, 60, 1},
                {"streaming_llm(window=10%)+kivi", "", 4, 100, 32},
                {"local(window=37)+int8", "", 0, 37, 1}};
  for (const auto& c : kCases) {
    const LayerPlan p = plan(c.policy);
    EXPECT_FALSE(p.straight) << c.policy;
    EXPECT_EQ(p.codec ? p.codec->name() : "", c.codec) << c.policy;
    EXPECT_EQ(p.schedule.sink, c.sink) << c.policy;
    EXPECT_EQ(p.schedule.window, c.window) << c.policy;
    EXPECT_EQ(p.schedule.block, c.block) << c.policy;
    EXPECT_FALSE(p.selector.body || p.selector.chooser) << c.policy;
  }
  const LayerPlan selected = plan("snapkv(budget=64)+int4,window=30");
  EXPECT_EQ(selected.codec->name(), "int4");
  EXPECT_TRUE(selected.selector.chooser);
  EXPECT_EQ(selected.schedule.block, 1u);
}

TEST(CudaPlans, ZonesLieInStores) {
  const std::pair<const char*, const char*> kZones[] = {
      {"exact", "sink run, body run, heavy -, leaving run, window run"},
      {"snapkv(budget=64)", "sink run, body run, heavy -, leaving run, window run"},
      {"uniform(budget=64)", "sink run, body run, heavy -, leaving run, window run"},
      {"snapkv(budget=64)+int4", "sink run, body codes, heavy -, leaving codes, window run"},
      {"balancekv(b=16,heavy=0)+int4",
       "sink run, body run after codes, heavy -, leaving run, window run"},
      {"balancekv(b=16,heavy=20,heavy_interval=14)",
       "sink run, body run, heavy run, leaving run, window run"},
      {"balancekv(b=16,heavy=20,heavy_interval=14)+int4",
       "sink run, body codes, heavy codes, leaving codes, window run"},
      {"streaming_llm(window=60)", "sink apart, body -, heavy -, leaving -, window run"},
      {"exact+int4", "sink apart, body own, heavy -, leaving own, window run"},
      {"uniform(rate=0.3)", "sink apart, body own, heavy -, leaving own, window run"},
      {"express(heavy=0,s=32)", "sink apart, body own, heavy -, leaving own, window run"},
      {"express(s=60)", "sink run, body own, heavy run, leaving run, window run"},
      {"express(s=60)+int4", "sink run, body own, heavy codes, leaving codes, window run"},
      {"adakv(budget=40,interval=24)", "sink run, body ragged, heavy -, leaving run, window run"},
      {"adakv(budget=40,interval=24)+int4",
       "sink run, body ragged, heavy -, leaving codes, window run"}};
  for (const auto& [policy, zones] : kZones) {
    EXPECT_EQ(to_string(plan(policy).zones), zones) << policy;
  }
}

/// The most that a rule holds while 900 rows leave the window.
size_t most_rows_held(const Rule& rule) {
  PlanState state;
  Steps steps;
  size_t most = 0;
  for (int i = 0; i < 900; ++i) {
    rule.feed(state, Zone::kLeaving, 1, steps);
    most = std::max<size_t>(most, state.body());
  }
  return most;
}

// Pairs with a kernel of their own have it; what rows share goes with the layer.
TEST(CudaPlans, PairsHaveTheirKernels) {
  const std::pair<const char*, const char*> kNames[] = {
      {"exact+int8,sink=0", "int8"},
      {"exact+k:int8+v:int4,sink=0", "int8 beside values in int4"},
      {"exact+k:f16+v:int8,sink=0", "f16 beside values in int8"},
      {"exact+k:int4+v:bf16,dtype=bf16,sink=0", "int4 beside values in bf16"},
      {"exact+k:int4+v:int8,sink=0", "keys in int4, centred by 0, values in int8, centred by 0"},
      {"knorm(budget=50)+k:int8+v:int4", "int8 beside values in int4"},
      {"exact+k:qjl(paper=true)+v:kivi,sink=0", "qjl"},
      {"exact+qjl,sink=0", "qjl in 3 bits, centred by 128"}};
  for (const auto& [policy, name] : kNames) EXPECT_EQ(plan(policy).codec->name(), name) << policy;
  for (const char* policy :
       {"knorm(budget=50)+kivi", "exact+int8(center=32),sink=0", "h2o(budget=50)+qjl"})
    EXPECT_TRUE(plan(policy).shares) << policy;
  for (const char* policy :
       {"knorm(budget=50)+int4", "exact+turboquant,sink=0", "exact+kvquant,sink=0"})
    EXPECT_FALSE(plan(policy).shares) << policy;
  EXPECT_TRUE(plan("exact+kvquant,sink=0").before_rope);
}

TEST(CudaPlans, SelectorsKeepTheCpusBudgets) {
  const LayerPlan express = plan("express(heavy=0,s=10%),sink=2", 0);
  EXPECT_TRUE(express.selector.body && !express.selector.chooser);
  EXPECT_EQ(express.schedule.sink, 2u);
  EXPECT_EQ(express.schedule.window, 64u);
  const LayerPlan heavy = plan("express(s=64,heavy=10%,heavy_interval=9,heavy_queries=8)", 0);
  ASSERT_TRUE(heavy.selector.body && heavy.selector.heavy);
  EXPECT_EQ(heavy.selector.heavy->budget, 100u);
  EXPECT_EQ(heavy.selector.heavy->most(), 109u);
  EXPECT_EQ(heavy.selector.heavy->queries, 8u);
  EXPECT_FALSE(plan("uniform(budget=50)", 0).selector.heavy);
  const std::pair<const char*, size_t> kBudgets[] = {
      {"knorm(budget=77)", 77}, {"keydiff(budget=10%)", 100}, {"snapkv(budget=50)", 50},
      {"tova(budget=9)", 9},    {"h2o(budget=256KiB)", 60},   {"uniform(budget=25%)", 250}};
  for (const auto& [policy, budget] : kBudgets) {
    const LayerPlan p = plan(policy, 1);
    ASSERT_TRUE(p.selector.chooser && !p.selector.body) << policy;
    // 256 KiB over 8 heads: 60 is what the CPU's rule gives; tests/budget_test.cc has the bound.
    EXPECT_EQ(most_rows_held(*p.rule), budget) << policy;
  }
  // kvpress's pyramid: the sum over the layers is that of equal budgets.
  size_t sum = 0, last = 1000;
  for (int l = 0; l < 4; ++l) {
    const LayerPlan p = plan("pyramidkv(budget=100,beta=3),window=16", l);
    const size_t budget = dynamic_cast<const KeepBest&>(*p.rule).budget_at(900);
    EXPECT_LT(budget, last);
    sum += last = budget;
  }
  EXPECT_NEAR(static_cast<double>(sum), 400, 3);
}

}  // namespace
}  // namespace pith::cuda
