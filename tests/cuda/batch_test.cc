// Many sessions of one engine on the GPU: each says what it would say alone, bit for bit, in any
// company; threads that fork, ask and drop sessions change nothing that another runs.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "kernels/test_block_types.h"
#include "model/gguf_test_model.h"
#include "pith/engine.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "random_model.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

using Logits = std::vector<float>;

EngineOptions engine_for(size_t parallel) {
  EngineOptions o;
  o.device = Device::kCuda;
  o.chunk = 100;
  o.parallel = parallel;
  return o;
}

SessionOptions with_policy(const std::string& policy) {
  SessionOptions o;
  o.policy = Policy::parse(policy);
  o.context = 400;
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
                                 "express(s=32)+int4,window=16",
                                 "exact+kivi(bits=2),window=32",
                                 "exact+turboquant(bits=3),window=16",
                                 "exact+qjl,window=32",
                                 "exact+csr(s=4),window=32",
                                 "balancekv(rate=0.5)+int4,window=16",
                                 "uniform(budget=60,heavy=20),window=16",
                                 "buzz(T=64,s=8)"};

struct Talk {
  std::string policy;
  std::vector<int32_t> prompt, answer;
};
Talk talk(size_t i, int vocab) {
  const auto seed = static_cast<uint32_t>(i);
  return {kPolicies[i % std::size(kPolicies)], random_ids(5 + 37 * i % 190, vocab, 100 + seed),
          random_ids(8, vocab, 500 + seed)};
}

std::vector<Logits> alone(const std::shared_ptr<Engine>& engine, const Talk& t) {
  Session session(engine, with_policy(t.policy));
  std::vector<Logits> all;
  const auto keep = [&](std::span<const float> x) { all.emplace_back(x.begin(), x.end()); };
  keep(session.prefill(t.prompt));
  for (const int32_t id : t.answer) keep(session.decode(id));
  return all;
}

bool same_bits(const Logits& a, const Logits& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), 4 * a.size()) == 0;
}

/// Session i joins in step i % 3 and leaves when its answer is through; the last steps are the same
/// sessions in the same order, which are replayed, the first ones change from step to step.
void expect_company_changes_nothing(const std::shared_ptr<const Model>& model, size_t parallel,
                                    size_t count) {
  const int vocab = model->config().vocab;
  const auto engine = std::make_shared<Engine>(model, engine_for(parallel));
  std::vector<Talk> talks;
  std::vector<Session> sessions;
  for (size_t i = 0; i < count; ++i) {
    talks.push_back(talk(i, vocab));
    sessions.emplace_back(engine, with_policy(talks[i].policy));
  }
  std::vector<size_t> said(count, 0);  // steps that a session was part of
  std::vector<std::vector<Logits>> got(count);
  for (size_t step = 0; step < 3 + 9; ++step) {
    std::vector<size_t> who;
    for (size_t i = 0; i < count; ++i) {
      if (step >= i % 3 && said[i] <= talks[i].answer.size()) who.push_back(i);
    }
    if (step == 4) std::ranges::reverse(who);
    std::vector<Work> works;
    for (const size_t i : who) {
      got[i].emplace_back(static_cast<size_t>(vocab));
      Work w{&sessions[i], talks[i].prompt};
      if (said[i] > 0) w.tokens = {&talks[i].answer[said[i] - 1], 1};
      w.logits = got[i].back().data();
      works.push_back(w);
      ++said[i];
    }
    engine->step(works);
    for (const Work& w : works) ASSERT_FALSE(w.failure) << w.failure->what();
  }
  const auto other = std::make_shared<Engine>(model, engine_for(parallel));
  for (size_t i = 0; i < count; ++i) {
    const std::vector<Logits> expected = alone(other, talks[i]);
    ASSERT_EQ(got[i].size(), expected.size());
    for (size_t t = 0; t < expected.size(); ++t) {
      ASSERT_TRUE(same_bits(got[i][t], expected[t]))
          << talks[i].policy << ", session " << i << " of " << count << ", token " << t;
    }
  }
}

TEST(CudaBatch, CompanyChangesNothing) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    const auto model = RandomModelFolder({.dtype = dtype}).load();
    PITH_NEEDS_GPU();
    SCOPED_TRACE(to_string(dtype));
    for (const size_t count : {1, 2, 9, 33}) expect_company_changes_nothing(model, 64, count);
  }
}

TEST(CudaBatch, SixtyFourInPassesOfAnySize) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  for (const size_t parallel : {1, 5, 64}) expect_company_changes_nothing(model, parallel, 64);
}

class CudaBatchGguf : public testing::TestWithParam<WeightType> {};

TEST_P(CudaBatchGguf, CompanyChangesNothing) {
  const testing_gguf::TwoForms forms("llama", GetParam());
  const auto model = Model::load(forms.write_gguf());
  PITH_NEEDS_GPU();
  for (const size_t count : {2, 11}) expect_company_changes_nothing(model, 16, count);
}

INSTANTIATE_TEST_SUITE_P(Types, CudaBatchGguf, testing::ValuesIn(block_types()),
                         [](const auto& p) { return std::string(to_string(p.param)); });

// Activations are rounded to 17 bits where tokens are multiplied together.
TEST(CudaBatch, AgreesWithTheCpu) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const auto model = RandomModelFolder({.dtype = dtype, .head_dim = 128}).load();
    PITH_NEEDS_GPU();
    const auto ids = random_ids(40, model->config().vocab, 1);
    Session cpu(model, options_for(Device::kCpu, "exact"));
    StandaloneOptions o = options_for(Device::kCuda, "exact");
    o.parallel = 8;
    Session gpu(model, o);
    const auto want = all_logits(cpu, ids, 0), got = all_logits(gpu, ids, 0);
    EXPECT_LT(relative_error(got, {want.begin(), want.end()}), 3e-3) << to_string(dtype);
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

// What does not belong to sessions is there once; a session's own memory comes back.
TEST(CudaBatch, SessionsTakeTheirOwnAndGiveItBack) {
  const auto model = RandomModelFolder({}).load();
  PITH_NEEDS_GPU();
  const auto engine = std::make_shared<Engine>(model, engine_for(8));
  const size_t before = engine->bytes_in_use();
  EXPECT_EQ(before, engine->ledger().total_bytes());
  {
    std::vector<Session> sessions;
    for (int i = 0; i < 20; ++i) sessions.emplace_back(engine, with_policy("exact"));
    size_t all = before;
    for (const Session& s : sessions) all += s.ledger().total_bytes();
    EXPECT_EQ(engine->bytes_in_use(), all);
  }
  EXPECT_EQ(engine->bytes_in_use(), before);
}

}  // namespace
}  // namespace pith::cuda
