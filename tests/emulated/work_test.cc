// The cache's requests to the card, counted: launches, copies, clears, allocations, and how often
// it waits. This program's own copies and waits are among them, the same for all.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ostream>

#include "cuda/cache_pair.h"
#include "cuda/random_model.h"
#include "cuda/sessions.h"
#include "emulated/emulated/asked.h"
#include "pith/engine.h"
#include "session/test_company.h"

namespace emulated {

void PrintTo(const Asked& asked, std::ostream* out) {
  *out << "{" << asked.launches << ", " << asked.copies << ", " << asked.clears << ", "
       << asked.allocations << ", " << asked.waits << ", " << asked.graphs << "}";
}

}  // namespace emulated

namespace pith::cuda {
namespace {

using emulated::Asked;

/// Of 64 tokens, and of a chunk of 96 behind them.
struct WorkCase {
  const char* policy;
  Asked tokens, chunk;
};

const WorkCase kCases[] = {
    {"exact", {192, 770, 0, 258, 320}, {2, 14, 0, 6, 4}},
    {"exact,sink=3,window=9", {192, 770, 0, 258, 320}, {2, 14, 0, 6, 4}},
    {"exact+int4,window=20", {196, 780, 8, 264, 320}, {14, 28, 8, 14, 4}},
    {"exact+ladder(rows=64),window=20,sink=0", {200, 780, 8, 264, 320}, {20, 36, 24, 34, 4}},
    {"streaming_llm(window=37,rope=cache),sink=7", {320, 772, 0, 260, 320}, {6, 20, 0, 5, 4}},
    {"knorm(budget=40,interval=24)", {216, 768, 0, 256, 320}, {34, 16, 0, 8, 4}},
    {"knorm(budget=40,interval=24)+int4", {222, 768, 0, 256, 320}, {98, 16, 0, 44, 4}},
    {"adakv(budget=40,interval=24)+int4,window=20",
     {532, 774, 24, 322, 326},
     {128, 24, 32, 102, 4}},
    {"uniform(rate=0.3)", {256, 768, 0, 256, 320}, {8, 22, 0, 7, 4}},
    {"uniform(rate=0.3)+int4", {200, 768, 16, 272, 320}, {20, 21, 0, 7, 4}},
    {"uniform(budget=40)+int8", {244, 768, 0, 272, 320}, {36, 24, 8, 31, 4}},
    {"balancekv(b=16,heavy=20,heavy_interval=14)+int4,window=20",
     {538, 768, 0, 384, 320},
     {308, 18, 0, 197, 4}},
    {"express(heavy=0,s=32),window=20", {256, 776, 0, 256, 320}, {7, 20, 0, 6, 4}},
    {"express(s=60),window=20", {380, 768, 0, 256, 320}, {11, 18, 0, 19, 4}},
    {"express(s=60)+int4,window=20", {612, 768, 0, 304, 320}, {42, 34, 24, 48, 4}},
    {"knorm(budget=40,interval=24);heads=0:exact", {344, 770, 0, 258, 320}, {36, 34, 0, 10, 4}},
};

/// Steps of sessions, by their numbers: who is in a pass changes, not what it is like.
class Passes {
 public:
  Passes(const std::shared_ptr<const Model>& model, const char* policy)
      : policy_(policy), engine_(std::make_shared<Engine>(model, options())) {}
  void add(const std::vector<int32_t>& prompt) {
    sessions_.emplace_back(engine_, test::with_policy(policy_));
    sessions_.back().append(prompt);
  }
  void step(const std::vector<size_t>& who) {
    const int32_t id = 5;
    std::vector<Work> works;
    for (const size_t i : who) works.push_back({&sessions_[i], {&id, 1}});
    engine_->step(works);
    for (const Work& w : works) EXPECT_FALSE(w.failure);
  }
  void drop_first() { sessions_.erase(sessions_.begin()); }

 private:
  static EngineOptions options() {
    EngineOptions o;
    o.device = Device::kCuda;
    o.parallel = 8;
    return o;
  }
  const char* policy_;
  std::shared_ptr<Engine> engine_;
  std::vector<Session> sessions_;
};

TEST(EmulatedWork, WhoJoinsAndLeavesIsSaidByDescriptors) {
  const auto model = RandomModelFolder({}).load();
  const auto prompt = random_ids(70, model->config().vocab, 1);
  for (const char* policy :
       {"exact", "exact+int4,window=16", "keydiff(budget=48)+int4,window=16",
        "express(s=32)+int4,window=16", "exact+turboquant(bits=3),window=16"}) {
    SCOPED_TRACE(policy);
    Passes passes(model, policy);
    for (int i = 0; i < 4; ++i) passes.add(prompt);
    const Asked first = emulated::asked();
    for (int i = 0; i < 3; ++i) passes.step({0, 1});
    for (int i = 0; i < 2; ++i) passes.step({0, 1, 2});
    const Asked before = emulated::asked();
    EXPECT_GE((before - first).graphs, 2);
    passes.step({0, 2});
    passes.step({3, 2, 1});
    passes.drop_first();
    passes.add(prompt);
    passes.step({3, 0});
    passes.step({1, 3, 2});
    EXPECT_EQ((emulated::asked() - before).graphs, 0);
  }
}

TEST(EmulatedWork, StaysWhatItWas) {
  for (const WorkCase& c : kCases) {
    SCOPED_TRACE(c.policy);
    Pair pair(c.policy, 64, DType::kF16);
    pair.watch_saved_alone();
    pair.run_chunk(100);
    pair.end_prefill();
    for (int t = 0; t < 40; ++t) pair.run_token();
    const Asked before = emulated::asked();
    for (int t = 0; t < 64; ++t) pair.run_token();
    const Asked between = emulated::asked();
    pair.run_chunk(96);
    EXPECT_EQ(between - before, c.tokens);
    EXPECT_EQ(emulated::asked() - between, c.chunk);
  }
}

/// Launches of each of so many steps of as many sessions, whose prompts are equally long. The first
/// runs a pass kernel by kernel.
std::vector<uint64_t> launches(const std::shared_ptr<const Model>& model, const char* policy,
                               size_t count, int steps = 60) {
  Passes passes(model, policy);
  std::vector<size_t> who;
  for (uint32_t i = 0; i < count; ++i) {
    passes.add(random_ids(80, model->config().vocab, i));
    who.push_back(i);
  }
  std::vector<uint64_t> all;
  for (int step = 0; step < steps; ++step) {
    const Asked before = emulated::asked();
    passes.step(who);
    all.push_back((emulated::asked() - before).launches);
  }
  return all;
}

constexpr const char* kWide =
    "express(s=32,heavy=24,heavy_interval=12)+k:turboquant(bits=4)+v:turboquant(bits=3),window=16";
constexpr const char* kNarrow =
    "express(s=16,heavy=16,heavy_interval=12)+k:turboquant(bits=4)+v:turboquant(bits=3),window=16";
constexpr const char* kAll = "exact+turboquant(bits=4,center=128),window=16";

// A layer's heads of one form are one call, in however many ranges and sessions, and all ranges'
// new rows one copy.
TEST(EmulatedWork, HeadsOfOneFormAttendInOneLaunch) {
  const auto model = RandomModelFolder({.heads = 8, .kv_heads = 4}).load();
  const auto of_pass = [&](const std::string& rules, size_t sessions) {
    return launches(model, (kWide + rules).c_str(), sessions, 1).front();
  };
  const auto uniform = of_pass("", 2), copy = uint64_t{1}, other_form = uint64_t{1};
  EXPECT_EQ(of_pass("", 5), uniform);
  const std::string two = fmt::format(";layers=1/heads=1:{}", kNarrow);
  const std::string forms =
      fmt::format(";layers=1/heads=0,3:{};layers=1/heads=2:{}", kAll, kNarrow);
  for (const size_t sessions : {1, 5}) {
    EXPECT_EQ(of_pass(two, sessions), uniform + copy);
    EXPECT_EQ(of_pass(forms, sessions), uniform + copy + other_form);
  }
}

// Rows in codes that leave for coresets are split and taken in launches of as many layers and
// sessions as have places for staged rows: 4 on this card, so ten bodies take three times where
// four do once.
TEST(EmulatedWork, HeavyRowsOfSessionsAreSplitTogether) {
  const auto model = RandomModelFolder({}).load();
  struct Case {
    const char* codec;
    uint64_t launches;  // of one time
  };
  for (const Case& c :
       {Case{"int4(hadamard=true)", 20}, Case{"k:turboquant(bits=4)+v:turboquant(bits=3)", 26}}) {
    SCOPED_TRACE(c.codec);
    const auto policy =
        fmt::format("express(s=32,heavy=24,heavy_interval=12)+{},window=16", c.codec);
    const auto of = [&](size_t sessions) {
      return std::ranges::max(launches(model, policy.c_str(), sessions, 30));
    };
    EXPECT_EQ(of(5), of(2) + 2 * c.launches);
  }
}

// Rows that leave windows and are selected from, of however many layers and sessions.
TEST(EmulatedWork, SessionsAreSelectedInTheLaunchesOfTwo) {
  const auto model = RandomModelFolder({}).load();
  for (const char* policy : {"keydiff(budget=48,interval=24)+int4,sink=4,window=16",
                             "knorm(budget=41,interval=17)+int8,sink=4,window=16"}) {
    SCOPED_TRACE(policy);
    const auto of_two = launches(model, policy, 2);
    EXPECT_EQ(launches(model, policy, 7), of_two);
    const auto [least, most] = std::ranges::minmax(of_two);
    EXPECT_GE(most, least + 7) << "some step selects: keys, scores, choice, codes twice, sides";
  }
}

}  // namespace
}  // namespace pith::cuda
