// uniform(rate=...) over codes on the GPU against the CPU's: heads differ in their rows, and each
// codes its own in groups.

#include <cmath>

#include "cache_pair.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

/// Bytes by which the GPU's payload may be above the CPU's: the group that is not full yet, and
/// rows that would leave the CPU's window one by one, are exact.
uint64_t exact_bytes(int dim, size_t group) {
  return (group - 1 + 31) * uint64_t{kLayers * kKvHeads * 4} * dim;
}

/// Numbers that are the same after chunks of any sizes, whose sum is such that blocks of 32 rows
/// have left the window.
void expect_same(const Pair& pair, int dim, size_t group) {
  EXPECT_EQ(pair.same_rows(), 1);
  const Ledger cpu = pair.cpu_ledger(), gpu = pair.gpu_ledger();
  EXPECT_EQ(cpu.rows_kept, gpu.rows_kept);
  EXPECT_GT(gpu.payload, 0);
  EXPECT_LE(gpu.payload, cpu.payload + exact_bytes(dim, group));
  EXPECT_LE(gpu.total_bytes(), pair.counted());
}

// Rows that int4 gives back as they came: whatever lies in codes and what is still exact, attention
// is what it is over the same rows.
TEST(CudaRateCodes, HoldsTheRowsThatTheCpuHolds) {
  PITH_NEEDS_GPU();
  for (const char* text :
       {"uniform+int4,sink=0,window=64", "uniform(rate=0.6)+int4,sink=4,window=0",
        "uniform(rate=0.02,weights=false)+int4,sink=3,window=33",
        "uniform(rate=1)+int4,sink=0,window=32"}) {
    for (const int dim : {64, 128}) {
      const DType dtype = dim == 64 ? DType::kBF16 : DType::kF16;
      const std::string policy = std::string(text) + ",dtype=" + to_string(dtype);
      SCOPED_TRACE(policy);
      const size_t kept = policy.find("sink=4") != std::string::npos   ? 4
                          : policy.find("sink=3") != std::string::npos ? 36
                                                                       : 0;
      if (left_out()) continue;
      Pair pair(policy, dim, dtype);
      pair.draw_codes();
      for (const size_t tokens : {size_t{128}, 96 + kept, size_t{32}, size_t{320}}) {
        pair.run_chunk(tokens);
      }
      pair.end_prefill();
      expect_same(pair, dim, 32);
      for (int t = 0; t < 32; ++t) pair.run_token();
      pair.use_clone();
      for (int t = 0; t < 64; ++t) pair.run_token();
      expect_same(pair, dim, 32);
      pair.run_chunk(64);
      expect_same(pair, dim, 32);
      EXPECT_LT(pair.worst(), dtype == DType::kBF16 ? 2e-2 : 3e-3);
      EXPECT_GT(pair.compared(), 0.02);
    }
  }
}

// Behind heavy rows only the device knows which rows come, and how many of them stay.
TEST(CudaRateCodes, HeavyRowsLetOthersGo) {
  PITH_NEEDS_GPU();
  for (const char* text : {"uniform(rate=0.3,heavy=40,heavy_interval=20,heavy_queries=8)",
                           "uniform(rate=0.6,heavy=60,heavy_keys=1)+int4,sink=0,window=33",
                           "uniform(heavy=50,heavy_interval=70)+int8,window=20"}) {
    for (const int dim : {64, 128}) {
      const DType dtype = dim == 64 ? DType::kBF16 : DType::kF16;
      const std::string policy = std::string(text) + ",dtype=" + to_string(dtype);
      SCOPED_TRACE(policy);
      if (left_out()) continue;
      Pair pair(policy, dim, dtype);
      pair.draw_codes();
      for (const size_t tokens : {130, 97, 2, 200, 64}) pair.run_chunk(tokens);
      pair.end_prefill();
      for (int t = 0; t < 64; ++t) pair.run_token();
      pair.use_clone();
      for (int t = 0; t < 64; ++t) pair.run_token();
      EXPECT_GE(pair.same_rows(), 0.97);
      EXPECT_LT(pair.worst(), dtype == DType::kBF16 ? 2e-2 : 3e-3);
      EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
    }
  }
}

// Every codec whose rows share scales, means and products: the groups are those of the CPU. Both
// hold the same codes but where rows wait: the CPU's values of kivi do not.
TEST(CudaRateCodes, GroupsAreTheCpus) {
  PITH_NEEDS_GPU();
  const struct {
    const char* codec;
    size_t group;
    double bound;
  } kCases[] = {{"int8", 32, 1e-2},
                {"kivi(bits=4)", 32, 0.1},
                {"kivi(bits=2)", 32, 0.4},
                {"qjl(paper=true)", 32, 0.5},
                {"k:qjl(paper=true)+v:kivi(bits=2)", 32, 0.5},
                {"turboquant(bits=3)", 32, 0.2},
                {"turboquant(bits=3,center=128)", 128, 0.2},
                {"qjl", 128, 0.2},
                {"int8(center=64)", 64, 1e-2},
                {"int8(hadamard=true)", 32, 1e-2},
                {"gear(bits=4,rows=64)", 64, 0.1},
                {"k:int8+v:int4", 32, 0.1},
                {"k:f16+v:int8", 32, 1e-2}};
  for (const auto& c : kCases) {
    const std::string policy = std::string("uniform(rate=0.6)+") + c.codec + ",sink=0,window=64";
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 128, DType::kF16);
    for (const size_t tokens : {128, 96, 32, 320, 64}) pair.run_chunk(tokens);
    pair.end_prefill();
    expect_same(pair, 128, c.group);
    for (int t = 0; t < 32; ++t) pair.run_token();
    pair.use_clone();
    pair.run_chunk(32);
    expect_same(pair, 128, c.group);
    EXPECT_GT(pair.compared(), 0.1);
    EXPECT_LT(pair.worst(), c.bound);
    // Weights count all tokens, within what chance allows: 6 deviations of about 600 draws.
    EXPECT_NEAR(pair.weight(1, 0), 704, 6 * std::sqrt(640 * 0.4 / 0.6));
  }
}

// Token by token, in crowds of odd sizes, and beside protected rows.
TEST(CudaRateCodes, AnySizesHoldTheSame) {
  PITH_NEEDS_GPU();
  for (const char* codec : {"int4", "k:f16+v:int4", "int4(center=64)"}) {
    const std::string policy = std::string("uniform(rate=0.4)+") + codec + ",sink=2,window=30";
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair tokens(policy, 64, DType::kF16);
    tokens.draw_codes();
    for (int t = 0; t < 320; ++t) tokens.run_token();
    expect_same(tokens, 64, 64);
    Pair odd(policy, 128, DType::kF16);
    odd.draw_codes();
    for (const size_t count : {1, 130, 2, 97, 200, 63, 3, 144}) odd.run_chunk(count);
    expect_same(odd, 128, 64);
    Pair some(policy, 64, DType::kF16);
    some.draw_codes();
    some.protect({{2, 9}, {30, 31}, {100, 140}});
    for (const size_t count : {130, 20, 66}) some.run_chunk(count);
    some.protect({{300, 320}});
    for (const size_t count : {104, 20}) some.run_chunk(count);
    for (int t = 0; t < 32 + 16; ++t) some.run_token();
    expect_same(some, 64, 64);
    for (const Pair* pair : {&tokens, &odd, &some}) {
      EXPECT_LT(pair->worst(), std::string(codec) == "int4(center=64)" ? 0.1 : 3e-3);
    }
  }
}

/// For compute-sanitizer too.
TEST(CudaRateCodes, SmallOnesHoldTheSame) {
  PITH_NEEDS_GPU();
  for (const char* codec :
       {"int4", "kivi(bits=2)", "qjl(paper=true)", "qjl", "turboquant(bits=4,center=64)"}) {
    const std::string policy = std::string("uniform(rate=0.7)+") + codec + ",sink=0,window=0";
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 64, DType::kF16);
    for (const size_t tokens : {3, 2, 93, 30}) pair.run_chunk(tokens);
    for (int t = 0; t < 32; ++t) pair.run_token();
    EXPECT_EQ(pair.same_rows(), 1);
    EXPECT_LT(pair.worst(), 0.6);
  }
}

// Through the engine: the graph of a token stays valid while heads fill their groups.
TEST(CudaRateCodes, TheEngineDecodes) {
  const auto model = RandomModelFolder({.dtype = DType::kF32}).load();
  PITH_NEEDS_GPU();
  const auto ids = random_ids(500, model->config().vocab, 12);
  const std::span<const int32_t> prompt = std::span(ids).first(386);
  for (const char* policy : {"uniform(rate=0.5)+int8,sink=2,window=64",
                             "uniform(rate=0.5)+kivi(bits=4),sink=2,window=64"}) {
    SCOPED_TRACE(policy);
    Session cpu(model, options_for(Device::kCpu, policy, 128));
    Session gpu(model, options_for(Device::kCuda, policy, 128));
    cpu.prefill(prompt);
    gpu.prefill(prompt);
    EXPECT_EQ(cpu.rows(1, 1).positions, gpu.rows(1, 1).positions);
    const auto want = cpu.decode(ids[386]), got = gpu.decode(ids[386]);
    EXPECT_LT(relative_error({got.begin(), got.end()}, {want.begin(), want.end()}), 0.15);
    // The same tokens as a chunk and one by one.
    Session chunk = gpu.fork();
    for (size_t i = 387; i < 450; ++i) gpu.decode(ids[i]);
    chunk.append(std::span(ids).subspan(387, 63));
    EXPECT_EQ(chunk.rows(1, 1).positions, gpu.rows(1, 1).positions);
    const auto one = gpu.decode(ids[450]);
    const std::vector<float> logits(one.begin(), one.end());
    EXPECT_TRUE(std::ranges::all_of(logits, [](float x) { return std::isfinite(x); }));
    Session fork = chunk.fork();
    const auto a = chunk.decode(ids[450]);
    const std::vector<float> first(a.begin(), a.end());
    const auto b = fork.decode(ids[450]);
    EXPECT_TRUE(std::equal(b.begin(), b.end(), first.begin()));
  }
}

}  // namespace
}  // namespace pith::cuda
