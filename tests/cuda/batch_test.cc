// Many sessions of one engine on the GPU: each says what it would say alone, bit for bit, in any
// company; threads that fork, ask and drop sessions change nothing that another runs.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "gguf_test_model.h"
#include "kernels/test_block_types.h"
#include "pith/engine.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "random_model.h"
#include "session/test_company.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

using test::Logits;
using test::same_bits;
using test::Talk;
using test::with_policy;

EngineOptions engine_for(size_t parallel) {
  EngineOptions o;
  o.device = Device::kCuda;
  o.chunk = 100;
  o.parallel = parallel;
  return o;
}

/// Rows of both types, selectors and codecs of every kind that heads of 64 channels know.
const char* const kPolicies[] = {"exact",
                                 "exact+bf16",
                                 "exact+int4,sink=4,window=32",
                                 "keydiff(budget=48)+int4,sink=4,window=16",
                                 "h2o(budget=48,interval=40),window=16,dtype=bf16",
                                 "snapkv(budget=40)+int8",
                                 "streaming_llm(window=60,rope=cache)",
                                 "express(heavy=0,s=32)+int4,window=16",
                                 "exact+kivi(bits=2),window=32,sink=0",
                                 "exact+turboquant(bits=3),window=16,sink=0",
                                 "exact+qjl(paper=true),window=32,sink=0",
                                 "exact+qjl(center=32),window=16,sink=0",
                                 "exact+csr(s=4),window=32,sink=0",
                                 "balancekv(heavy=0,rate=0.5)+int4,window=16",
                                 "uniform(budget=60,heavy=20),window=16",
                                 "buzz(T=64,s=8)",
                                 "express(s=32,heavy=24,heavy_interval=12)+int4,window=16;heads=1:"
                                 "express(s=16,heavy=16,heavy_interval=12)+int4,window=16",
                                 "h2o(budget=48,interval=40);heads=1:exact+turboquant(bits=4)"};

Talk talk(size_t i, int vocab) {
  const auto seed = static_cast<uint32_t>(i);
  return {kPolicies[i % std::size(kPolicies)], random_ids(5 + 37 * i % 190, vocab, 100 + seed),
          random_ids(8, vocab, 500 + seed)};
}

/// The last steps are the same sessions in the same order, which are replayed; the first ones
/// change from step to step.
void expect_company_changes_nothing(const std::shared_ptr<const Model>& model, size_t parallel,
                                    size_t count) {
  std::vector<Talk> talks;
  for (size_t i = 0; i < count; ++i) talks.push_back(talk(i, model->config().vocab));
  test::expect_company_changes_nothing(std::make_shared<Engine>(model, engine_for(parallel)),
                                       std::make_shared<Engine>(model, engine_for(parallel)), talks,
                                       3, [](size_t step) { return step == 4; });
}

TEST(CudaBatch, CompanyChangesNothing) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const auto model = RandomModelFolder({.dtype = dtype}).load();
    PITH_NEEDS_GPU();
    SCOPED_TRACE(to_string(dtype));
    for (const size_t count : {9, 1, 2, 33})
      if (!left_out()) expect_company_changes_nothing(model, 64, count);
  }
}

TEST(CudaBatch, SixtyFourInPassesOfAnySize) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  for (const size_t parallel : {5, 1, 64})
    if (!left_out()) expect_company_changes_nothing(model, parallel, 64);
}

// Heavy rows of all leave in one pass, and wait in more places than there are.
TEST(CudaBatch, StagedRowsOfManyWaitForNobody) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  constexpr size_t kMany = 24;
  for (const char* const policy :
       {"express(s=32,heavy=24,heavy_interval=12)+int4,window=16",
        "express(s=32,heavy=24,heavy_interval=12)+turboquant(bits=4),window=16;heads=1:"
        "express(s=16,heavy=16,heavy_interval=12)+k:turboquant(bits=4)+v:turboquant(bits=3),"
        "window=16"}) {
    std::vector<Talk> talks;
    for (size_t i = 0; i < kMany; ++i) {
      const auto seed = static_cast<uint32_t>(i);
      talks.push_back({policy, random_ids(90, model->config().vocab, 100 + seed),
                       random_ids(14, model->config().vocab, 500 + seed)});
    }
    test::expect_company_changes_nothing(std::make_shared<Engine>(model, engine_for(kMany)),
                                         std::make_shared<Engine>(model, engine_for(kMany)), talks,
                                         1, [](size_t) { return false; });
  }
}

class CudaBatchGguf : public testing::TestWithParam<WeightType> {};

TEST_P(CudaBatchGguf, CompanyChangesNothing) {
  const testing_gguf::TwoForms forms("llama", GetParam());
  const auto model = Model::load(forms.write_gguf());
  PITH_NEEDS_GPU();
  for (const size_t count : {11, 2})
    if (!left_out()) expect_company_changes_nothing(model, 16, count);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaBatchGguf, testing::ValuesIn(block_types()),
                         [](const auto& p) { return std::string(to_string(p.param)); });

// Activations are rounded to the weights' type where tokens are multiplied together, as a chunk's
// are.
TEST(CudaBatch, AgreesWithTheCpu) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto model = RandomModelFolder({.dtype = dtype, .head_dim = 128}).load();
    PITH_NEEDS_GPU();
    const auto ids = random_ids(40, model->config().vocab, 1);
    Session cpu(model, options_for(Device::kCpu, "exact"));
    const auto want = all_logits(cpu, ids, 0);
    for (const size_t parallel : {8, 64}) {
      StandaloneOptions o = options_for(Device::kCuda, "exact");
      o.parallel = parallel;
      Session gpu(model, o);
      const auto got = all_logits(gpu, ids, 0);
      const double bound = dtype == DType::kF16 ? 5e-3 : 3e-2;
      EXPECT_LT(relative_error(got, {want.begin(), want.end()}), bound)
          << to_string(dtype) << ", " << parallel;
    }
  }
}

// The work of other threads on the engine's stream is no part of a captured pass.
TEST(CudaBatch, ThreadsForkAndDropWhileOthersDecode) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const auto engine = std::make_shared<Engine>(model, engine_for(4));
  const int vocab = model->config().vocab;
  const auto prompt = random_ids(70, vocab, 3), answer = random_ids(40, vocab, 4);
  Session base(engine, with_policy("keydiff(budget=48)+int4,sink=4,window=16"));
  base.prefill(prompt);
  const auto say = [&](Session session) {
    std::vector<Logits> all;
    for (const int32_t id : answer) {
      const auto logits = session.decode(id);
      all.emplace_back(logits.begin(), logits.end());
    }
    return all;
  };
  const auto want = say(base.fork());
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 3; ++round) {
        Session fork = base.fork();
        if (t % 2 == 0) {
          const auto got = say(std::move(fork));
          for (size_t i = 0; i < want.size(); ++i) wrong += !same_bits(got[i], want[i]);
        } else {
          for (int i = 0; i < 20; ++i) wrong += fork.fork().rows(0, 0).positions.empty();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Tokens that are drawn in one pass are those that each session draws alone, however it draws.
TEST(CudaBatch, DrawsAreThoseOfOneAlone) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const auto engine = std::make_shared<Engine>(model, engine_for(8));
  const int vocab = model->config().vocab;
  std::vector<Session> together, alone;
  std::vector<Sampler> samplers, twins;
  for (uint32_t i = 0; i < 7; ++i) {
    for (auto* all : {&together, &alone}) {
      all->emplace_back(engine, with_policy("exact"));
      all->back().append(random_ids(20, vocab, i));
    }
    SamplingOptions o{.temperature = i % 3 == 2 ? 0.8f : 0.0f};
    if (i == 3) o.repeat_penalty = 1.3f;
    samplers.emplace_back(o);
    twins.emplace_back(o);
  }
  std::vector<int32_t> next = random_ids(7, vocab, 50);
  for (int step = 0; step < 6; ++step) {
    std::vector<Work> works;
    for (size_t i = 0; i < together.size(); ++i) {
      Work w{&together[i], {&next[i], 1}};
      w.sampler = &samplers[i];
      works.push_back(w);
    }
    engine->step(works);
    for (size_t i = 0; i < alone.size(); ++i) {
      ASSERT_FALSE(works[i].failure) << works[i].failure->what();
      alone[i].append({&next[i], 1});
      EXPECT_EQ(works[i].next, alone[i].sample(twins[i])) << i;
    }
    for (size_t i = 0; i < works.size(); ++i) next[i] = works[i].next;
  }
}

// Memory that does not belong to sessions is there once; a session's own memory comes back.
TEST(CudaBatch, SessionsTakeTheirOwnAndGiveItBack) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const auto engine = std::make_shared<Engine>(model, engine_for(8));
  const size_t before = engine->bytes_in_use();
  EXPECT_EQ(before, engine->ledger().total_bytes());
  {
    std::vector<Session> sessions;
    for (int i = 0; i < 20; ++i) sessions.emplace_back(engine, with_policy("exact"));
    size_t all = engine->ledger().total_bytes();
    for (const Session& s : sessions) all += s.ledger().total_bytes();
    EXPECT_EQ(engine->bytes_in_use(), all);
  }
  EXPECT_EQ(engine->bytes_in_use(), before);
}

}  // namespace
}  // namespace pith::cuda
