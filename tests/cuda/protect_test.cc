// Protected rows on the GPU against the CPU's.

#include "cache_pair.h"
#include "pith/error.h"
#include "pith/session.h"
#include "random_model.h"

namespace pith::cuda {
namespace {

// Runs of protected rows in the sink, within a chunk, at its ends, whole chunks, and among tokens.
TEST(CudaCache, ProtectedRowsStay) {
  PITH_NEEDS_GPU();
  for (const char* text :
       {"exact", "exact,window=40", "local(window=37)", "streaming_llm(window=60)",
        "snapkv(budget=64,interval=20),sink=4", "h2o(budget=60,interval=40,decay=0.5)",
        "tova(budget=70,interval=25)", "keydiff(budget=77,interval=50),window=20",
        "knorm(budget=64,interval=40)", "pyramidkv(budget=80,interval=30,beta=3)",
        "buzz(T=100),window=40", "expected_attention(budget=70,interval=40)",
        "express(heavy=0,s=64)", "express(s=32,heavy=40,heavy_interval=20),window=10",
        "balancekv(b=32,heavy=0)",
        "balancekv(b=16,walk=exact,heavy=30,heavy_interval=25),sink=4,window=20",
        "uniform(budget=50,heavy=40,heavy_interval=32)", "uniform(rate=0.3)"}) {
    for (const bool prompt : {true, false}) {
      SCOPED_TRACE(std::string(text) + (prompt ? "" : ", token by token"));
      if (left_out()) continue;
      Pair pair(text, prompt ? 64 : 128, DType::kF16);
      pair.protect({{2, 9}, {30, 31}, {100, 140}});
      if (prompt) {
        for (const size_t tokens : {130, 20, 60}) pair.run_chunk(tokens);
        pair.protect({{210, 250}, {300, 320}, {405, 420}});
        for (const size_t tokens : {40, 90, 80}) pair.run_chunk(tokens);
        pair.end_prefill();
      }
      for (int t = 0; t < (prompt ? 10 : 160); ++t) pair.run_token();
      pair.use_clone();
      for (int t = 0; t < 40; ++t) pair.run_token();
      EXPECT_GE(pair.same_rows(), 0.99);
      EXPECT_LT(pair.worst(), 4e-3);
      EXPECT_GE(pair.compared(), 0.6);
      EXPECT_EQ(pair.cpu_ledger().rows_kept, pair.gpu_ledger().rows_kept);
      EXPECT_EQ(pair.cpu_ledger().payload, pair.gpu_ledger().payload);
      EXPECT_EQ(pair.cpu_ledger().tokens, pair.gpu_ledger().tokens);
      EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
    }
  }
}

// Sizes are such that both devices code the same rows at each step.
TEST(CudaCache, ProtectedRowsBesideCodesStay) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"exact+kivi(bits=4),window=64,sink=0", "exact+int8,window=64,sink=0",
        "streaming_llm(window=64)+kivi", "snapkv(budget=96,interval=64)+int4,window=64"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 128, DType::kF16);
    pair.protect({{10, 20}, {70, 71}, {150, 171}});
    for (const size_t tokens : {107, 117, 64, 128}) pair.run_chunk(tokens);
    EXPECT_GE(pair.same_rows(), 0.97);
    EXPECT_LT(pair.worst(), 4e-3);
    EXPECT_EQ(pair.cpu_ledger().rows_kept, pair.gpu_ledger().rows_kept);
    EXPECT_EQ(pair.cpu_ledger().payload, pair.gpu_ledger().payload);
  }
}

// Rows that int4 gives back as they came, so that the rows are the CPU's. Tokens among them too.
TEST(CudaCache, ProtectedRowsBesideSamplesInCodesStay) {
  PITH_NEEDS_GPU();
  for (const char* policy : {"express(heavy=0,s=64)+int4,sink=0,window=64",
                             "express(s=32,heavy=40,heavy_interval=20)+int4",
                             "uniform(budget=50,heavy=40,heavy_interval=32)+int4",
                             "balancekv(b=16,heavy=30,heavy_interval=25)+int4,sink=4,window=20"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 64, DType::kF16);
    pair.draw_codes();
    pair.protect({{2, 9}, {30, 31}, {100, 140}, {270, 280}, {330, 341}});
    for (const size_t tokens : {130, 20, 60, 40}) pair.run_chunk(tokens);
    pair.use_clone();
    for (int t = 0; t < 134; ++t) pair.run_token();
    for (int t = 0; t < 37; ++t) pair.run_token();  // 352 rows in all are not protected
    EXPECT_GE(pair.same_rows(), 0.99);
    EXPECT_LT(pair.worst(), 3e-3);
    EXPECT_EQ(pair.cpu_ledger().tokens, pair.gpu_ledger().tokens);
    EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
  }
}

// Selected late, so that the sample is the CPU's after a chunk. Runs begin and end within blocks.
TEST(CudaCache, ProtectedRowsBesideASampleStay) {
  PITH_NEEDS_GPU();
  for (const char* policy : {"uniform(budget=70)", "uniform(budget=33,weights=false),window=5"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 64, DType::kF16);
    pair.protect({{2, 9}, {30, 31}, {31, 33}, {100, 140}, {270, 280}});
    for (const size_t tokens : {130, 20, 60, 5, 90}) pair.run_chunk(tokens);
    EXPECT_EQ(pair.same_rows(), 1);
    EXPECT_EQ(pair.compared(), 1);
    EXPECT_LT(pair.worst(), 4e-3);
  }
}

// Keys before RoPE with their own positions, between which those of protected rows are missing:
// keys at other positions would be other keys.
TEST(CudaCache, ProtectedRowsBesideTurnedCodesStay) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"knorm(budget=160)+kvquant(bits=4,calibrate=96),sink=0,window=64",
        "h2o(budget=160)+kvquant(bits=4,calibrate=96),sink=0,window=64",
        "express(heavy=0,s=64)+kvquant(bits=4,calibrate=96),sink=2,window=64",
        "uniform(budget=100,heavy=64,heavy_interval=64)+kvquant(bits=4,calibrate=96)",
        "knorm(budget=160)+k:kvquant(bits=4,calibrate=96)+v:gear(bits=4,rows=64)",
        "h2o(budget=160)+int4(hadamard=true,center=96,pre_rope=true),sink=0,window=64"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 64, DType::kF16);
    pair.protect({{10, 20}, {70, 71}, {150, 171}, {380, 402}});
    for (const size_t tokens : {107, 117, 64, 128}) pair.run_chunk(tokens);
    pair.use_clone();
    for (int t = 0; t < 70; ++t) pair.run_token();
    EXPECT_GE(pair.same_rows(), 0.75);
    EXPECT_GT(pair.compared(), 0);
    EXPECT_LT(pair.worst(), 0.25);
    EXPECT_EQ(pair.cpu_ledger().tokens, pair.gpu_ledger().tokens);
    EXPECT_LE(pair.gpu_ledger().total_bytes(), pair.counted());
  }
}

TEST(CudaCache, ProtectionIsRefusedWhereItIsNotThere) {
  PITH_NEEDS_GPU();
  MemoryCounter memory;
  const Rope rope(64, 10000);
  for (const char* policy : {"exact+csr(rope=pre),sink=0", "streaming_llm(rope=cache)"}) {
    DeviceCache turned(memory, shape_of(64), Policy::parse(policy), 0, nullptr, &rope);
    const std::vector<TokenRange> ranges{{10, 20}};
    testing_files::expect_error(ErrorCode::kUnsupported, {"protecting", "--device cpu"},
                                [&] { turned.protect(ranges); });
  }
  EXPECT_THROW(
      DeviceCache(memory, shape_of(64), Policy::parse("streaming_llm(rope=cache)"), 0, nullptr),
      Error);
  DeviceCache cache(memory, shape_of(64), Policy::parse("exact"), 0, nullptr);
  const std::vector<TokenRange> reversed{{20, 10}};
  testing_files::expect_error(ErrorCode::kInvalidArgument, {"20:10"},
                              [&] { cache.protect(reversed); });
}

std::vector<int32_t> random_ids(size_t count, int vocab, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(vocab));
  return ids;
}

// The graph of a token that was captured before is captured anew.
TEST(CudaSession, TokensMayBeProtectedLater) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({.dtype = DType::kF32}).load();
  const auto ids = random_ids(200, model->config().vocab, 15);
  for (const char* policy : {"streaming_llm(window=30)", "knorm(budget=40,interval=10)",
                             "express(heavy=0,s=64),window=20", "balancekv(b=16,heavy=20)"}) {
    StandaloneOptions options;
    options.policy = Policy::parse(policy);
    options.chunk = 64;
    options.threads = 2;
    options.f32_arithmetic = true;
    options.protect = {{20, 50}};
    Session cpu(model, options);
    options.device = Device::kCuda;
    Session gpu(model, options);
    const auto run = [&](Session& session) {
      session.prefill(std::span<const int32_t>(ids).first(130));
      for (size_t i = 130; i < 150; ++i) session.decode(ids[i]);
      session.protect(std::vector<TokenRange>{{160, 165}});
      for (size_t i = 150; i < ids.size() - 1; ++i) session.decode(ids[i]);
      const auto logits = session.decode(ids.back());
      return std::vector<float>(logits.begin(), logits.end());
    };
    const auto want = run(cpu), got = run(gpu);
    EXPECT_LT(relative_error(got, {want.begin(), want.end()}), 0.1) << policy;
    EXPECT_EQ(cpu.rows(1, 1).positions.size(), gpu.rows(1, 1).positions.size()) << policy;
    EXPECT_EQ(cpu.describe_policy(), gpu.describe_policy());
  }
}

}  // namespace
}  // namespace pith::cuda
