// Samples in codes on the GPU against the CPU's: coresets, heavy rows and weights over codecs that
// code rows alone. See cache_test.cc for rows of weight 1 in codes.

#include "cache_pair.h"

namespace pith::cuda {
namespace {

/// Express's rows leave the window 32 at a time on the GPU.
bool leaves_in_blocks(const std::string& policy) { return policy.starts_with("express(heavy=0"); }

const char* const kPolicies[] = {
    "express(heavy=0,s=64),sink=0,window=64",
    "express(heavy=0,s=128,g=0,weight=0.8),sink=0,window=32",
    "express(heavy=0,s=16,balance=1),sink=0,window=0",
    "express(s=64,heavy=50,heavy_interval=30,heavy_queries=12)",
    "express(s=32,g=0,heavy=21,heavy_interval=7),sink=2,window=0",
    "uniform(budget=100)",
    "uniform(budget=33),sink=0,window=5",
    "uniform(budget=60,heavy=50,heavy_interval=20,heavy_queries=16)",
    "uniform(budget=40,weights=false,heavy=30,heavy_interval=50),sink=0,window=33",
    "balancekv(b=32,heavy=60,heavy_interval=50,heavy_queries=20)",
    "balancekv(rate=0.5,b=16,walk=exact,heavy=20,heavy_interval=16),sink=3,window=10",
    "balancekv(rate=0.125,b=16,weight=0.7,heavy=33,heavy_interval=40)",
    "uniform(budget=40,heavy=60,heavy_keys=1),window=20",
    "express(s=64,heavy=70,heavy_keys=0.5)",
    "express(s=150)",
    "balancekv(b=32,heavy=60,heavy_keys=0.3,heavy_interval=64)",
    "buzz(T=90,weights=true),window=30",
    "buzz(s=4,T=77,weights=true,swap=true,localmax=false),sink=0"};

// Rows that int4 gives back as they came: what is selected is what was selected without
// codes, and rows that move as codes must come with their positions, weights and mass.
TEST(CudaCodedCache, HoldsTheRowsThatTheCpuHolds) {
  PITH_NEEDS_GPU();
  for (const char* text : kPolicies) {
    for (const int dim : {64, 128}) {
      const DType dtype = dim == 64 ? DType::kBF16 : DType::kF16;
      const std::string policy = over(text, "int4") + ",dtype=" + to_string(dtype);
      SCOPED_TRACE(policy);
      if (left_out()) continue;
      Pair pair(policy, dim, dtype);
      pair.draw_codes();
      run_chunks(pair);
      EXPECT_GE(pair.same_rows(), 0.99);
      for (int t = 0; t < 64; ++t) pair.run_token();
      pair.use_clone();
      for (int t = 0; t < 64; ++t) pair.run_token();
      EXPECT_GE(pair.same_rows(), 0.99);
      EXPECT_LT(pair.worst(), dtype == DType::kBF16 ? 2e-2 : 3e-3);
      if (!selected_late(text)) {
        EXPECT_GE(pair.compared(), leaves_in_blocks(text) ? 0.03 : 0.7);
      }
      const Ledger cpu = pair.cpu_ledger(), gpu = pair.gpu_ledger();
      EXPECT_EQ(cpu.rows_kept, gpu.rows_kept);
      EXPECT_GE(gpu.payload, cpu.payload);
      EXPECT_LE(gpu.payload, cpu.payload + late_bytes(dim));
      EXPECT_LE(gpu.total_bytes(), pair.counted());
    }
  }
}

// Each part of a prompt by itself and token by token, whatever the sizes.
TEST(CudaCodedCache, TokensAloneHoldTheSame) {
  PITH_NEEDS_GPU();
  for (const char* text : kPolicies) {
    const std::string policy = over(text, "int4");
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 64, DType::kF16);
    pair.draw_codes();
    for (int t = 0; t < 288; ++t) pair.run_token();
    if (selected_late(text)) pair.end_prefill();
    EXPECT_GE(pair.same_rows(), 0.99);
    EXPECT_LT(pair.worst(), 3e-3);
    Pair odd(policy, 128, DType::kF16);
    odd.draw_codes();
    for (const size_t tokens : {130, 1, 97, 2, 200, 63}) odd.run_chunk(tokens);
    for (const size_t tokens : {3, 144}) odd.run_chunk(tokens);
    odd.end_prefill();
    EXPECT_GE(odd.same_rows(), 0.99);
    EXPECT_LT(odd.worst(), 3e-3);
  }
}

// Codes that round. A selection sees numbers of f16 here, of f32 on the CPU: where two scores are
// that close another row stays, and the choices behind it in a halving follow. How many that are is
// what rounding does on the CPU. There rows are coded again when they leave a heavy store, here
// they move as they are; and up to 31 rows are still exact here, which the bound on attention's
// error is for.
TEST(CudaCodedCache, RoundedRowsAreNearlyTheSame) {
  PITH_NEEDS_GPU();
  for (const char* text : kPolicies) {
    for (const char* codec : {"int8", "int4", "turboquant(bits=4)", "k:int8+v:int4"}) {
      const std::string policy = over(text, codec);
      SCOPED_TRACE(policy);
      const bool fine = std::string(codec) == "int8";
      if (left_out()) continue;
      Pair pair(policy, 128, DType::kF16);
      pair.watch_rounding();
      run_chunks(pair);
      for (int t = 0; t < 32; ++t) pair.run_token();
      EXPECT_GE(pair.same_rows(), pair.least_same_rows());
      EXPECT_GT(pair.compared(), 0);
      EXPECT_LT(pair.worst(), fine ? 1e-2 : 0.1);
      EXPECT_EQ(pair.cpu_ledger().rows_kept, pair.gpu_ledger().rows_kept);
      EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
    }
  }
}

// Codes of which 32 rows share the channels that are apart: each row that is selected from takes
// its list with it. Rows leave the window 32 at a time on both devices, and where a selector
// selects after many of them they are a group on both. Without an interval rows come a few at a
// time, and groups differ; so they do under uniform and buzz, where a group is on the CPU what the
// selector took.
TEST(CudaCodedCache, RowsOfGroupsTakeWhatTheyShare) {
  PITH_NEEDS_GPU();
  for (const char* text :
       {"express(heavy=0,s=64),sink=0,window=64", "express(heavy=0,s=32,g=0),sink=3,window=0",
        "uniform(budget=100)", "knorm(budget=90,interval=512)",
        "keydiff(budget=77,interval=512),sink=0,window=33", "snapkv(budget=100,interval=512)",
        "h2o(budget=110,interval=512),window=50", "tova(budget=90,interval=512)",
        "buzz(T=90,weights=true),window=30", "expected_attention(budget=90,interval=512)"}) {
    for (const int dim : {64, 128}) {
      const DType dtype = dim == 64 ? DType::kBF16 : DType::kF16;
      const std::string policy =
          over(text, dim == 64 ? "qjl(paper=true)" : "k:qjl(paper=true,m=512)+v:kivi(bits=2)") +
          ",dtype=" + to_string(dtype);
      SCOPED_TRACE(policy);
      if (left_out()) continue;
      Pair pair(policy, dim, dtype);
      expect_groups_held(pair, text);
    }
  }
}

// A sample's weights sum to the number of rows that it stands for.
TEST(CudaCodedCache, WeightsCountAllTokens) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"express(heavy=0,s=32)+turboquant(bits=3)", "express(heavy=0,s=32)+qjl(paper=true)",
        "express(heavy=0,s=32)+qjl(center=32)", "express(s=16,heavy=20,heavy_interval=9)+int8",
        "uniform(budget=50)+int4", "uniform(budget=30,heavy=20,heavy_interval=8)+turboquant",
        "balancekv(b=16,heavy=20,heavy_interval=30)+int8"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 64, DType::kBF16);
    size_t tokens = 0;
    const auto expect_all = [&] {
      for (int g = 0; g < kKvHeads; ++g) {
        EXPECT_NEAR(pair.weight(1, g), static_cast<double>(tokens), 1e-3 * tokens);
      }
    };
    for (const size_t chunk : {100, 3, 250, 60}) {
      pair.run_chunk(chunk);
      tokens += chunk;
      expect_all();
    }
    for (int t = 0; t < 70; ++t, ++tokens) pair.run_token();
    expect_all();
  }
}

}  // namespace
}  // namespace pith::cuda
