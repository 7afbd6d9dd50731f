// Rules for single heads on the GPU: heads of one layer with different rules, against the CPU's
// cache and engine.

#include "cache_pair.h"
#include "pith/error.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

// Every kind of rows beside every other one: dense, coded, selected in place and in a store of its
// own, dropped; one layer under one rule, the other split, and both.
const char* const kPolicies[] = {
    "exact;heads=1:local(window=40)",
    "exact;layers=1/heads=0:exact+kivi(bits=4),window=32,sink=0",
    "exact+kivi(bits=4),window=32,sink=0;heads=1:exact+int8,window=64,sink=0",
    "snapkv(budget=64,interval=20);heads=0:exact",
    "h2o(budget=60,interval=40);heads=1:tova(budget=70,interval=25)",
    "express(heavy=0,s=64);heads=0:exact",
    "exact;heads=1:express(s=32,heavy=40,heavy_interval=20),window=10",
    "express(heavy=0,s=32);layers=0/heads=1:express(heavy=0,s=64),window=20",
    "balancekv(b=32,heavy=0);heads=0:keydiff(budget=77,interval=50)",
    "uniform(rate=0.3);heads=0:streaming_llm(window=60)",
    "exact;heads=1:uniform(rate=0.3)+int8,sink=0,window=64",
    "uniform(budget=64);heads=0:buzz(T=100),window=40",
    "exact;heads=1:expected_attention(budget=70,interval=40)",
    "exact+csr(rope=post),window=32,sink=0;heads=0:streaming_llm(window=60)",
    "streaming_llm(window=60,rope=cache);heads=0:exact",
    "express(s=32,heavy=40,heavy_interval=20)+int4,window=10;"
    "heads=1:express(s=16,heavy=24,heavy_interval=12)+int4,window=10"};

TEST(CudaHeads, HoldTheRowsThatTheCpuHolds) {
  PITH_NEEDS_GPU();
  for (const char* policy : kPolicies) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 64, DType::kF16);
    // Halving takes other rows of what codes have changed.
    if (std::string(policy).find("+int4") != std::string::npos) pair.draw_codes();
    for (const size_t tokens : {128, 96, 32, 192}) pair.run_chunk(tokens);
    pair.end_prefill();
    EXPECT_GE(pair.same_rows(), 0.98);
    EXPECT_LT(pair.worst(), 2e-2);
    for (int t = 0; t < 40; ++t) pair.run_token();
    pair.use_clone();
    for (int t = 0; t < 24; ++t) pair.run_token();
    EXPECT_GE(pair.same_rows(), 0.98);
    // Between blocks the CPU has coded rows that are exact on the GPU, with csr far from them.
    EXPECT_LT(pair.worst(), std::string(policy).find("csr") == std::string::npos ? 2e-2 : 1);
    // Up to 31 rows are selected late, or drawn late where they go into codes.
    const bool late = std::string(policy).starts_with("uniform(budget") ||
                      std::string(policy).find("uniform(rate=0.3)+") != std::string::npos;
    if (!late) {
      EXPECT_GE(pair.compared(), 0.2);
    }
    EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
    EXPECT_EQ(pair.cpu_ledger().tokens, pair.gpu_ledger().tokens);
  }
}

TEST(CudaHeads, HoldTheBytesThatTheCpuHolds) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"exact;heads=1:local(window=40)",
        "exact+kivi(bits=4),window=32,sink=0;heads=1:exact+int8,window=64,sink=0",
        "snapkv(budget=64,interval=20);heads=0:exact"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 128, DType::kBF16);
    for (const size_t tokens : {128, 96, 32, 192}) pair.run_chunk(tokens);
    EXPECT_EQ(pair.cpu_ledger().rows_kept, pair.gpu_ledger().rows_kept);
    EXPECT_EQ(pair.cpu_ledger().payload, pair.gpu_ledger().payload);
  }
}

TEST(CudaHeads, ProtectedRowsStay) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"exact;heads=1:local(window=40)", "snapkv(budget=64,interval=20);heads=0:exact",
        "express(heavy=0,s=64);heads=0:streaming_llm(window=40)+kivi"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 64, DType::kF16);
    pair.protect({{2, 9}, {30, 31}, {100, 140}});
    for (const size_t tokens : {130, 20, 60}) pair.run_chunk(tokens);
    for (int t = 0; t < 40; ++t) pair.run_token();
    EXPECT_GE(pair.same_rows(), 0.98);
    EXPECT_LT(pair.worst(), 4e-3);
  }
}

TEST(CudaHeads, SlidingLayersToo) {
  PITH_NEEDS_GPU();
  Pair pair("exact;heads=1:exact+kivi(bits=4),window=32,sink=0",
            "exact;heads=1:exact+kivi(bits=4),window=32,sink=0", 128, DType::kF16, {90, 0});
  for (const size_t tokens : {128, 96, 256}) pair.run_chunk(tokens);
  for (int t = 0; t < 70; ++t) pair.run_token();
  EXPECT_EQ(pair.same_rows(), 1);
  EXPECT_LT(pair.worst(), 1e-2);
}

// For compute-sanitizer too.
TEST(CudaHeads, SmallOnesHoldTheSame) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"exact;heads=1:local(window=5)", "knorm(budget=4,interval=2);heads=0:exact"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 64, DType::kF16);
    for (const size_t tokens : {3, 2, 70, 5}) pair.run_chunk(tokens);
    for (int t = 0; t < 12; ++t) pair.run_token();
    EXPECT_GE(pair.same_rows(), 0.95);
  }
}

// Five KV heads in four runs, with query groups of two.
TEST(CudaHeads, ModelsAgreeWithTheCpu) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({.dtype = DType::kF32, .heads = 10, .kv_heads = 5}).load();
  const auto ids = random_ids(360, model->config().vocab, 31);
  for (const char* policy : {"exact;heads=1-2:streaming_llm(window=50);heads=4:local(window=33)",
                             "exact+kivi(bits=4),window=32,sink=0;layers=1/heads=0,3:exact"}) {
    SCOPED_TRACE(policy);
    EXPECT_LT(difference(model, policy, ids, 300, 512), 1e-2);
    EXPECT_LT(difference(model, policy, ids, 300, 97), 1e-2);
    EXPECT_LT(difference(model, policy, ids, 0, 512), 1e-2);
    Session cpu(model, options_for(Device::kCpu, policy));
    Session gpu(model, options_for(Device::kCuda, policy));
    cpu.prefill(ids);
    gpu.prefill(ids);
    EXPECT_EQ(cpu.ledger().payload, gpu.ledger().payload);
    EXPECT_EQ(cpu.describe_policy(), gpu.describe_policy());
    for (int g = 0; g < 5; ++g) EXPECT_EQ(cpu.rows(1, g).positions, gpu.rows(1, g).positions);
    Session fork = gpu.fork();
    const auto a = gpu.decode(3);
    const std::vector<float> first(a.begin(), a.end());
    const auto b = fork.decode(3);
    EXPECT_TRUE(std::equal(b.begin(), b.end(), first.begin()));
  }
}

// The first layer's rows depend on no policy: a head under a rule holds the same whether its
// neighbours have that rule, another of the same form in a range of its own, or another's form.
TEST(CudaHeads, RangesHoldWhatOneRuleHolds) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({.dtype = DType::kF32, .heads = 10, .kv_heads = 5}).load();
  const auto ids = random_ids(340, model->config().vocab, 32);
  const std::string h2o = "h2o(budget=60,interval=40)", eights = "exact+int8,window=32,sink=0";
  const std::string pair = "+k:turboquant(bits=4)+v:turboquant(bits=3),window=16";
  const std::string express = "express(s=32,heavy=40,heavy_interval=20)" + pair;
  const std::string fewer = "express(s=16,heavy=24,heavy_interval=12)" + pair;
  const std::pair<std::string, std::string> cases[] = {
      {h2o, ";heads=1,3:" + eights},
      {h2o, ";heads=2:tova(budget=70,interval=25)"},
      {express, ";heads=1,3:exact+turboquant(bits=4,center=128),window=16"},
      {express, ";heads=1:exact+turboquant(bits=4,center=128),window=16;heads=3:" + fewer}};
  const auto read = [&](const std::string& policy) {
    Session session(model, options_for(Device::kCuda, policy, 97));
    session.prefill(std::span(ids).first(300));
    for (size_t i = 300; i < ids.size(); ++i) session.decode(ids[i]);
    return session;
  };
  for (const auto& [rule, others] : cases) {
    SCOPED_TRACE(rule + others);
    const Session whole = read(rule), parts = read(rule + others);
    for (const int head : {0, 4}) {
      EXPECT_EQ(whole.rows(0, head).positions, parts.rows(0, head).positions);
      EXPECT_EQ(whole.rows(0, head).log_weights, parts.rows(0, head).log_weights);
    }
  }
}

}  // namespace
}  // namespace pith::cuda
