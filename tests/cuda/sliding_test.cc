// Layers with a sliding window of their own on the GPU: against the CPU's cache and engine, row by
// row, over every codec; what stays in memory; what is refused.

#include "cache_pair.h"
#include "pith/error.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

// Both layers slide, or one of them, over windows that are shorter and longer than the policy's.
// Hidden rows are those of codes, of codes that wait, of the ring before it is full and after it
// has wrapped. Sizes are multiples of the codecs' blocks and groups, so that both devices hold the
// same codes after a chunk; between blocks the CPU has coded rows that are exact on the GPU.
TEST(CudaSliding, SeesWhatTheCpuSees) {
  PITH_NEEDS_GPU();
  const struct {
    const char* policy;
    double bound, between;
  } kCases[] = {
      {"exact", 4e-3, 4e-3},
      {"exact,window=40", 4e-3, 4e-3},
      {"local(window=50)", 4e-3, 4e-3},
      {"local(window=500)", 4e-3, 4e-3},
      {"streaming_llm(window=60)", 4e-3, 4e-3},
      {"streaming_llm(window=60,rope=cache)", 4e-3, 4e-3},
      {"streaming_llm(window=40)+kivi", 4e-3, 4e-3},
      {"knorm(budget=990,interval=32),window=40", 4e-3, 4e-3},
      {"exact+ladder(rows=64,old=turboquant(bits=3,center=64)),window=64,sink=0", 2e-2, 0.3},
      {"exact+int8,window=64,sink=0", 1e-2, 2e-2},
      {"exact+int4,window=32,sink=0", 1e-2, 0.3},
      {"exact+kivi,window=32,sink=0", 1e-2, 1e-2},
      {"exact+kivi(bits=4),window=0,sink=0", 1e-2, 1e-2},
      {"exact+k:int8+v:int4,window=64,sink=0", 1e-2, 0.2},
      {"exact+k:f16+v:int4,window=64,sink=0", 1e-2, 0.3},
      {"exact+qjl(paper=true),window=32,sink=0", 3e-2, 0.1},
      {"exact+k:qjl(paper=true,m=256)+v:kivi(bits=2),window=64,sink=0", 3e-2, 0.1},
      {"exact+qjl(center=64),window=64,sink=0", 1e-2, 0.3},
      {"exact+csr(rope=post),window=32,sink=0", 3e-2, 1},
      {"exact+csr(rope=pre),window=64,sink=0", 3e-2, 1},
      {"exact+turboquant(center=64),window=64,sink=0", 1e-2, 0.3},
      {"exact+gear(bits=4,rows=64),window=64,sink=0", 2e-2, 2e-2},
      {"exact+kvquant(bits=4,calibrate=128),window=32,sink=0", 3e-2, 3e-2},
      {"exact+int4(hadamard=true,center=128,pre_rope=true),window=32,sink=0", 3e-2, 0.3}};
  for (const auto& c : kCases) {
    for (const std::vector<int64_t>& sliding :
         {std::vector<int64_t>{100, 100}, {0, 64}, {128, 37}, {290, 600}}) {
      SCOPED_TRACE(std::string(c.policy) + ", sliding over " + std::to_string(sliding[0]) +
                   " and " + std::to_string(sliding[1]));
      if (left_out()) continue;
      Pair pair(c.policy, c.policy, sliding[1] % 2 ? 64 : 128, DType::kF16, sliding);
      for (const size_t tokens : {128, 64, 256, 64, 128}) pair.run_chunk(tokens);
      pair.end_prefill();
      EXPECT_EQ(pair.same_rows(), 1);
      pair.run_token();
      EXPECT_LT(pair.worst(), c.bound);
      for (int t = 1; t < 40; ++t) pair.run_token();
      pair.use_clone();
      for (int t = 40; t < 64; ++t) pair.run_token();
      EXPECT_EQ(pair.same_rows(), 1);
      EXPECT_LT(pair.worst(), c.between);
      pair.forget_worst();
      pair.run_token();
      pair.run_chunk(63);
      pair.run_chunk(192);
      EXPECT_EQ(pair.same_rows(), 1);
      EXPECT_EQ(pair.compared(), 1);
      EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
      pair.forget_worst();
      pair.run_token();
      EXPECT_LT(pair.worst(), c.bound);
    }
  }
}

// Chunks of any size, then tokens until all that was in the prompt is hidden.
TEST(CudaSliding, AnyChunksAndManyTokens) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"exact", "exact+kivi(bits=4),window=9,sink=0", "exact+kivi,sink=0", "local(window=9)",
        "streaming_llm(window=45)+kivi", "snapkv(budget=75,interval=8),window=9"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, policy, 64, DType::kF16, {75, 1});
    for (const size_t tokens : {1, 2, 70, 5, 1, 130, 33}) pair.run_chunk(tokens);
    for (int t = 0; t < 420; ++t) pair.run_token();
    EXPECT_EQ(pair.same_rows(), 1);
    EXPECT_EQ(pair.compared(), 1);
    EXPECT_LT(pair.worst(), 3e-2);
  }
}

// For compute-sanitizer too: codes are hidden, given back and come again.
TEST(CudaSliding, SmallOnesSeeTheSame) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"exact", "exact+kivi,window=3,sink=0", "exact+csr(rope=post),window=2,sink=0",
        "exact+int8,window=0,sink=0", "local(window=9)"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, policy, 64, DType::kF16, {20, 37});
    for (const size_t tokens : {3, 2, 70, 5, 290}) pair.run_chunk(tokens);
    pair.end_prefill();
    for (int t = 0; t < 34; ++t) pair.run_token();
    EXPECT_EQ(pair.same_rows(), 1);
    if (std::string(policy).find("csr") == std::string::npos) {  // the CPU codes earlier
      EXPECT_LT(pair.worst(), 5e-2);
    }
  }
}

// Exact rows are those that can be seen; codes at most a few hundred more.
TEST(CudaSliding, HoldsNoMoreThanItNeeds) {
  PITH_NEEDS_GPU();
  for (const char* policy : {"exact", "exact+int4,sink=0", "exact+kivi,window=64,sink=0"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, policy, 64, DType::kF16, {150, 0});
    pair.run_chunk(10);
    const size_t early = pair.gpu_ledger().total_bytes();
    if (std::string(policy) == "exact") {
      EXPECT_LT(early, size_t{2 * 64 * 2 * 64 * kKvHeads * 4});  // the ring grows with the rows
    }
    for (int i = 0; i < 3; ++i) pair.run_chunk(500);
    for (int t = 0; t < 10; ++t) pair.run_token();
    const bool exact = std::string(policy) == "exact";
    EXPECT_GE(pair.gpu_rows(0), 149u);
    EXPECT_LE(pair.gpu_rows(0), exact ? 149u : 149u + 256 + 32);
    EXPECT_EQ(pair.gpu_rows(1), 1520u);
    const size_t before = pair.counted();
    pair.use_clone();
    EXPECT_LE(pair.counted(), before + 1024);
  }
}

// Where nothing is ever hidden every selector is there.
TEST(CudaSliding, SelectorsThatNeverPassTheWindow) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"snapkv(budget=96,interval=50)", "h2o(budget=90,interval=30)", "express(heavy=0,s=64)",
        "exact+ladder,sink=0", "balancekv(b=64,heavy=0)"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, policy, 64, DType::kF16, {1000, 4096});
    pair.protect({{10, 20}, {100, 130}});  // which such layers forget
    for (const size_t tokens : {128, 96, 256}) pair.run_chunk(tokens);
    pair.end_prefill();
    EXPECT_GE(pair.same_rows(), 0.99);
    EXPECT_LT(pair.worst(), 1e-2);
    EXPECT_EQ(pair.cpu_ledger().rows_kept, pair.gpu_ledger().rows_kept);
  }
}

TEST(CudaSliding, ForgetsWhatIsProtected) {
  PITH_NEEDS_GPU();
  for (const char* policy : {"exact", "exact+kivi,window=32,sink=0", "streaming_llm(window=40)"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, policy, 64, DType::kF16, {0, 90});
    pair.protect({{10, 20}, {100, 130}});
    for (const size_t tokens : {128, 96, 32}) pair.run_chunk(tokens);
    for (int t = 0; t < 40; ++t) pair.run_token();
    EXPECT_EQ(pair.same_rows(), 1);
    EXPECT_LT(pair.worst(), 1e-2);
  }
}

// A model whose second layer slides, and one whose layers all do.
TEST(CudaSliding, ModelsAgreeWithTheCpu) {
  const auto mixed = RandomModelFolder({.dtype = DType::kF32,
                                        .head_dim = 128,
                                        .qkv_bias = true,
                                        .sliding = 60,
                                        .first_sliding = 1})
                         .load();
  const auto all = RandomModelFolder({.dtype = DType::kF32, .sliding = 60}).load();
  EXPECT_EQ(mixed->config().sliding_window, (std::vector<int64_t>{0, 60}));
  EXPECT_EQ(all->config().sliding_window, (std::vector<int64_t>{60, 60}));
  PITH_NEEDS_GPU();
  for (const auto& model : {mixed, all}) {
    const auto ids = random_ids(460, model->config().vocab, 21);
    for (const char* policy :
         {"exact", "exact+kivi(bits=4),window=32,sink=0", "streaming_llm(window=50)"}) {
      SCOPED_TRACE(policy);
      EXPECT_LT(difference(model, policy, ids, 400, 512), 1e-2);
      EXPECT_LT(difference(model, policy, ids, 300, 97), 1e-2);
      EXPECT_LT(difference(model, policy, ids, 0, 512), 1e-2);
    }
    Session gpu(model, options_for(Device::kCuda, "exact"));
    gpu.prefill(ids);
    Session fork = gpu.fork();
    const auto a = gpu.decode(3);
    const std::vector<float> first(a.begin(), a.end());
    const auto b = fork.decode(3);
    EXPECT_TRUE(std::equal(b.begin(), b.end(), first.begin()));
  }
}

// Needs no GPU.
TEST(CudaSliding, PlansAreTheWindows) {
  const auto plan = [](const char* policy, int64_t window, size_t context = 1000) {
    const ResolvedPolicy resolved(Policy::parse(policy), {2, 4, 2, 64, {0, window}, context}, 3,
                                  Device::kCuda);
    return plan_layer(resolved.layer(1).front(), {0, 2});
  };
  const struct {
    const char *policy, *codec;
    int64_t sliding;
    size_t window, block;
  } kCases[] = {{"exact", "", 100, 99, 1},
                {"exact,sink=4,window=9", "", 100, 99, 1},
                {"local(window=20)", "", 100, 20, 1},
                {"local(window=100)", "", 100, 99, 1},
                {"exact+kivi,sink=0", "kivi2", 300, 128, 32},
                {"exact+kivi,sink=0", "", 129, 128, 1},
                {"exact+kivi,sink=0", "", 40, 39, 1},
                {"exact+kivi,sink=0", "kivi2", 130, 128, 32},
                {"streaming_llm(window=60)", "", 300, 60, 1},
                {"snapkv(budget=100,interval=9),window=20", "", 100, 99, 1}};
  for (const auto& c : kCases) {
    SCOPED_TRACE(std::string(c.policy) + " over " + std::to_string(c.sliding));
    const LayerPlan p = plan(c.policy, c.sliding);
    EXPECT_FALSE(p.straight);
    EXPECT_EQ(p.seen, static_cast<size_t>(c.sliding));
    EXPECT_EQ(p.schedule.sink, 0u);
    EXPECT_EQ(p.schedule.window, c.window);
    EXPECT_EQ(p.schedule.block, c.block);
    EXPECT_EQ(p.codec ? p.codec->name() : "", c.codec);
  }
  EXPECT_TRUE(plan("exact", 1000).straight);
  EXPECT_FALSE(plan("exact", 1000, 1001).straight);
  EXPECT_FALSE(plan("exact", 1000, 0).straight);
}

}  // namespace
}  // namespace pith::cuda
