// The error probe on the GPU against the CPU's, which has its own tests against the truth.

#include <cmath>
#include <filesystem>

#include "cache_pair.h"
#include "paths.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "probe/cuda/probe_kernels.h"
#include "probe/probe_tiles.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

// A tile's sums against f64.
TEST(CudaErrorProbe, TileSumsAreThoseOfTheirRows) {
  PITH_NEEDS_GPU();
  MemoryCounter memory;
  constexpr int kGroup = 3;
  for (const int dim : {64, 128, 256}) {
    for (const DType dtype : {DType::kF16, DType::kBF16}) {
      const std::vector<size_t> sizes{1, 3, 63, 257, ProbeTile::kMostRows};
      size_t all = 0;
      for (const size_t rows : sizes) all += rows;
      const auto k = normals(all * dim, dtype, 1), v = normals(all * dim, dtype, 2);
      const auto q = normals(2 * kGroup * dim, DType::kF16, 3);
      const auto keys = to_device(memory, k), values = to_device(memory, v),
                 queries = to_device(memory, q);
      std::vector<ProbeTile> tiles;
      size_t first = 0;
      for (size_t t = 0; t < sizes.size(); ++t) {
        tiles.push_back({keys.data() + first * dim, values.data() + first * dim,
                         static_cast<int32_t>(sizes[t]), static_cast<int32_t>(t % 2)});
        first += sizes[t];
      }
      const auto list = to_device(memory, tiles);
      const size_t numbers = TileSums::numbers(dim);
      DeviceArray<float> out(memory, MemoryKind::kScratch, tiles.size() * kGroup * numbers,
                             nullptr);
      sum_probe_tiles({dtype, DType::kF16, queries.data(), list.data(),
                       static_cast<int>(tiles.size()), kGroup, dim, out.data()},
                      nullptr);
      const auto sums = to_host(out);
      const auto fk = widen(k, dtype), fv = widen(v, dtype), fq = widen(q, DType::kF16);
      first = 0;
      for (size_t t = 0; t < tiles.size(); ++t) {
        for (int j = 0; j < kGroup; ++j) {
          const float* query = fq.data() + (t % 2 * kGroup + j) * dim;
          std::vector<double> scores(sizes[t]), want(numbers);
          for (size_t i = 0; i < sizes[t]; ++i) {
            for (int c = 0; c < dim; ++c) {
              scores[i] += query[c] * fk[(first + i) * dim + c] / std::sqrt(dim);
            }
          }
          want[0] = *std::ranges::max_element(scores);
          for (size_t i = 0; i < sizes[t]; ++i) {
            const double p = std::exp(scores[i] - want[0]);
            want[1] += p;
            want[2] += p * p;
            for (int c = 0; c < dim; ++c) {
              const double x = fv[(first + i) * dim + c];
              want[3] += p * p * x * x;
              want[4 + c] += p * x;
              want[4 + dim + c] += p * p * x;
            }
          }
          const float* got = sums.data() + (t * kGroup + j) * numbers;
          EXPECT_LT(relative_error({got, got + numbers}, want), 2e-5) << t << " " << j;
          for (int i = 0; i < 4; ++i) EXPECT_NEAR(got[i], want[i], 1e-4 * std::abs(want[i]) + 1e-5);
        }
        first += sizes[t];
      }
    }
  }
}

struct Agreement {
  const char* policy;
  double part;  ///< by which the devices' estimates may differ
};

/// Both probes' estimates, layer by layer.
void expect_alike(const Pair& pair, size_t steps, double part) {
  const auto cpu = pair.cpu_errors(), gpu = pair.gpu_errors();
  ASSERT_EQ(cpu.size(), gpu.size());
  for (size_t l = 0; l < cpu.size(); ++l) {
    EXPECT_EQ(gpu[l].steps, steps);
    EXPECT_EQ(cpu[l].steps, steps);
    EXPECT_EQ(cpu[l].layer, gpu[l].layer);
    // Decode kernels round probabilities to 16 bits: 0.001 of an answer.
    EXPECT_NEAR(gpu[l].estimate, cpu[l].estimate, part * cpu[l].estimate + 2e-3) << l;
    EXPECT_NEAR(gpu[l].low, cpu[l].low, 2 * part * cpu[l].estimate + 3e-3) << l;
    EXPECT_NEAR(gpu[l].high, cpu[l].high, 2 * part * cpu[l].estimate + 3e-3) << l;
  }
}

// Rows are the same on both devices at the compared steps, as codes are made of whole blocks of 32;
// but for ladder's, which age in steps of their own, and those that halvings of f16 choose. Where
// keys wait for a group of more than 32 (center=128), the CPU codes their values before them.
TEST(CudaErrorProbe, AgreesWithTheCpu) {
  PITH_NEEDS_GPU();
  const Agreement kCases[] = {{"exact", 0},
                              {"local(window=37)", 0.01},
                              {"streaming_llm(window=60)", 0.01},
                              {"snapkv(budget=64,interval=32),sink=4", 0.01},
                              {"h2o(budget=60,interval=40)", 0.02},
                              {"express(heavy=0,s=64)", 0.02},
                              {"uniform(budget=96)", 0.1},
                              {"uniform(rate=0.3)", 0.02},
                              {"balancekv(b=32,heavy=0)", 0.02},
                              {"buzz(T=100,logn=true)", 0.02},
                              {"exact+kivi,sink=0", 0.03},
                              {"exact+int8,sink=0", 0.1},
                              {"exact+int4,sink=32", 0.03},
                              {"exact+turboquant(bits=3),sink=0", 0.05},
                              {"exact+k:f16+v:int4,sink=0", 0.05},
                              {"exact+qjl(center=32),sink=0", 0.01},
                              {"exact+qjl(paper=true),sink=0", 0.15},
                              {"snapkv(budget=96,interval=64)+qjl(paper=true),window=64", 0.2},
                              {"uniform(rate=0.3)+int4", 0.1},
                              {"exact+ladder(rows=128),sink=0", 0.12},
                              {"snapkv(budget=96,interval=64)+int4,window=64", 0.05},
                              {"express(heavy=0,s=64)+int4,window=64", 0.1},
                              {"adakv(budget=96,interval=64)+int4,window=64", 0.05},
                              {"exact;heads=1:snapkv(budget=64,interval=32)+int4", 0.05}};
  for (const Agreement& c : kCases) {
    for (const size_t rows : {size_t{256}, size_t{4096}}) {
      SCOPED_TRACE(std::string(c.policy) + ", " + std::to_string(rows) + " rows");
      if (left_out()) continue;
      Pair pair(c.policy, 64, DType::kF16);
      pair.start_error_probe({.rows = rows, .every = 32});
      for (const size_t tokens : {160, 96, 192}) pair.run_chunk(tokens);
      pair.end_prefill();
      for (int t = 0; t < 40; ++t) pair.run_token();
      pair.use_clone();
      for (int t = 0; t < 25; ++t) pair.run_token();
      expect_alike(pair, 3, c.part);
    }
  }
}

TEST(CudaErrorProbe, SmallAgreesWithTheCpu) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"streaming_llm(window=40),dtype=bf16", "exact+int4,window=32,dtype=bf16,sink=0"}) {
    SCOPED_TRACE(policy);
    if (left_out()) continue;
    Pair pair(policy, 128, DType::kBF16);
    pair.start_error_probe({.rows = 64, .every = 32});
    for (const size_t tokens : {64, 33, 63}) pair.run_chunk(tokens);
    for (int t = 0; t < 33; ++t) pair.run_token();
    expect_alike(pair, 2, 0.05);
  }
}

// Token by token from the first on, protected rows, and layers that slide, which are left out.
TEST(CudaErrorProbe, FollowsProtectedRowsAndLeavesOutSlidingLayers) {
  PITH_NEEDS_GPU();
  Pair pair("streaming_llm(window=40)", 64, DType::kF16);
  pair.protect({{2, 9}, {60, 75}, {130, 140}});
  pair.start_error_probe({.rows = 64, .every = 8});
  for (int t = 0; t < 90; ++t) pair.run_token();
  pair.run_chunk(60);
  pair.protect({{170, 180}});
  for (int t = 0; t < 50; ++t) pair.run_token();
  expect_alike(pair, 14, 0.01);  // the first four steps have too few rows behind them

  Pair sliding("exact", "exact", 64, DType::kF16, {0, 100});
  sliding.start_error_probe({.rows = 64, .every = 8});
  sliding.run_chunk(150);
  sliding.run_token();
  ASSERT_EQ(sliding.gpu_errors().size(), 1u);
  EXPECT_EQ(sliding.gpu_errors()[0].layer, 0);
  const size_t one_layer = 2 * 68 * (2 * 64 * 2 + 16);
  EXPECT_GE(sliding.gpu_probe_bytes(), one_layer);
  EXPECT_LE(sliding.gpu_probe_bytes(), one_layer * 5 / 4);
}

TEST(CudaErrorProbe, RefusesWhatCannotBe) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({}).load();
  StandaloneOptions o = options_for(Device::kCuda, "streaming_llm(rope=cache)");
  o.error_probe.rows = 64;
  testing_files::expect_error(ErrorCode::kUnsupported, {"rope=cache"}, [&] { Session(model, o); });
  o = options_for(Device::kCuda, "exact");
  o.error_probe.rows = 63;
  testing_files::expect_error(ErrorCode::kInvalidArgument, {"63 rows", "use 64 to"},
                              [&] { Session(model, o); });
}

// Graphs, probed steps and forks in turn; answers are what they are without a probe.
TEST(CudaErrorProbe, SessionsAgreeWithTheCpusAndAnswersStay) {
  PITH_NEEDS_GPU();
  const auto model = RandomModelFolder({.dtype = DType::kF32}).load();
  const auto ids = random_ids(420, model->config().vocab, 3);
  for (const char* policy : {"exact", "streaming_llm(window=60)", "snapkv(budget=96,interval=32)",
                             "exact+kivi,sink=0", "express(heavy=0,s=64)+int4,window=64"}) {
    SCOPED_TRACE(policy);
    StandaloneOptions on_cpu = options_for(Device::kCpu, policy, 128);
    StandaloneOptions on_gpu = options_for(Device::kCuda, policy, 128);
    Session plain(model, on_gpu);
    on_cpu.error_probe = on_gpu.error_probe = {.rows = 128, .every = 8};
    Session cpu(model, on_cpu), gpu(model, on_gpu);
    EXPECT_EQ(all_logits(plain, ids, 384), all_logits(gpu, ids, 384));
    all_logits(cpu, ids, 384);
    const auto want = cpu.attention_errors(), got = gpu.attention_errors();
    ASSERT_EQ(got.size(), 2u);
    for (size_t l = 0; l < 2; ++l) {
      EXPECT_EQ(got[l].steps, 5u);
      EXPECT_NEAR(got[l].estimate, want[l].estimate, 0.1 * want[l].estimate + 4e-3);
    }
    const size_t bytes = gpu.ledger().probe;
    EXPECT_GT(bytes, 0u);
    Session fork = gpu.fork();
    for (int t = 0; t < 5; ++t) EXPECT_EQ(gpu.decode(t)[0], fork.decode(t)[0]);
    EXPECT_GE(fork.ledger().probe, bytes * 9 / 10) << "a fork that went on has its own sample";
    EXPECT_GE(gpu.ledger().probe, bytes * 9 / 10);
    EXPECT_EQ(gpu.attention_errors()[1].steps, 6u);
    EXPECT_EQ(gpu.attention_errors()[1].estimate, fork.attention_errors()[1].estimate);
  }
}

TEST(CudaErrorProbe, GenerationStopsAboveTheLimit) {
  PITH_NEEDS_GPU();
  const auto model = Model::load(repo_dir() / "models/demo", false);
  GenerateOptions g;
  g.sampling.temperature = 0, g.max_tokens = 12, g.ignore_eos = true;
  StandaloneOptions o = options_for(Device::kCuda, "exact");
  o.error_probe = {.rows = 128, .every = 4, .max_error = 0.05};
  const auto ids = random_ids(200, model->config().vocab, 4);
  Session exact(model, o);
  EXPECT_EQ(generate(exact, ids, g).reason, StopReason::kMaxTokens);
  o.policy = Policy::parse("local(window=8)");
  Session lossy(model, o);
  const GenerateResult r = generate(lossy, ids, g);
  EXPECT_EQ(r.reason, StopReason::kAttentionError);
  EXPECT_EQ(r.tokens.size(), 1u);
}

}  // namespace
}  // namespace pith::cuda
