// One engine, eight threads, forks of one session: what each thread reads and says is what it would
// alone. `make tsan` runs it under ThreadSanitizer.

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <mutex>
#include <thread>

#include "paths.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/prefix_tree.h"
#include "pith/session.h"

namespace pith {
namespace {

constexpr size_t kThreads = 8, kTokens = 6;

std::vector<int32_t> some_ids(size_t count, size_t seed) {
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>((seed + 7 * i * i) % 8000);
  return ids;
}

std::shared_ptr<Engine> small_engine() {
  EngineOptions o;
  o.threads = 2;
  o.chunk = 32;
  return std::make_shared<Engine>(Model::load(repo_dir() / "models/demo"), o);
}

SessionOptions small_session(const std::string& policy) {
  SessionOptions o;
  o.policy = Policy::parse(policy);
  o.context = 300;
  return o;
}

using Logits = std::vector<float>;

/// The answer of a thread's conversation: by Session alone, or by steps of two sessions.
std::vector<Logits> say(const Session& base, size_t thread) {
  Session session = base.fork(), other = base.fork();
  std::vector<Logits> said;
  const auto ids = some_ids(kTokens, 100 * thread);
  session.append(some_ids(5 + thread, thread));
  for (const int32_t id : ids) {
    if (thread % 2 == 0) {
      const auto logits = session.decode(id);
      said.emplace_back(logits.begin(), logits.end());
      continue;
    }
    said.emplace_back(static_cast<size_t>(base.model().config().vocab));
    Sampler greedy({.temperature = 0});
    std::vector<Work> works(2);
    works[0].session = &session, works[0].tokens = {&id, 1}, works[0].logits = said.back().data();
    works[1].session = &other, works[1].tokens = {&id, 1}, works[1].sampler = &greedy;
    base.engine()->step(works);
    for (const Work& w : works)
      if (w.failure) throw Error(*w.failure);
  }
  if (session.ledger().tokens != session.tokens())
    throw Error(ErrorCode::kInternal, "a ledger of other tokens");
  return said;
}

/// body(i) in kThreads threads at once, none of which may throw.
template <class Body>
void at_once(const Body& body) {
  std::vector<std::string> errors(kThreads);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const std::exception& e) {
        errors[i] = e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  for (size_t i = 0; i < kThreads; ++i) EXPECT_EQ(errors[i], "") << i;
}

class EngineThreads : public testing::TestWithParam<const char*> {};

TEST_P(EngineThreads, EightForksOfOneSessionGoOnAtOnce) {
  const auto engine = small_engine();
  const SessionOptions options = small_session(GetParam());
  Session base(engine, options);
  base.append(some_ids(90, 1));
  std::vector<std::vector<Logits>> expected, said(kThreads);
  for (size_t i = 0; i < kThreads; ++i) expected.push_back(say(base, i));
  const size_t bytes = engine->bytes_in_use();
  at_once([&](size_t i) {
    said[i] = say(base, i);
    Session(engine, options).append(some_ids(9, i));  // made and dropped beside the others
  });
  for (size_t i = 0; i < kThreads; ++i) {
    ASSERT_EQ(said[i].size(), kTokens);
    for (size_t t = 0; t < kTokens; ++t)
      EXPECT_EQ(std::memcmp(said[i][t].data(), expected[i][t].data(), 4 * said[i][t].size()), 0)
          << "thread " << i << ", token " << t;
  }
  // Scratch may have grown; sessions are gone.
  EXPECT_LE(engine->bytes_in_use(), bytes + (size_t{1} << 20));
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineThreads,
                         testing::Values("exact", "keydiff(budget=32,interval=16)+int4,window=16",
                                         "exact+k:qjl(paper=true,m=128)+v:int4,window=16",
                                         "express(heavy=0,s=32)+csr(online=32),window=16"),
                         [](const auto& i) { return std::to_string(i.index); });

// Two engines of one runtime, each of its threads with sessions of one of them.
TEST(RuntimeThreads, TwoEnginesGoOnAtOnce) {
  const auto model = Model::load(repo_dir() / "models/demo");
  EngineOptions o;
  o.chunk = 32;
  o.runtime = std::make_shared<Runtime>(RuntimeOptions{.threads = 2});
  const std::array engines = {std::make_shared<Engine>(model, o),
                              std::make_shared<Engine>(model, o)};
  const SessionOptions options = small_session("keydiff(budget=32,interval=16)+int4,window=16");
  const auto talk = [&](size_t thread) {
    Session base(engines[thread % 2], options);
    base.append(some_ids(40, 1));
    return say(base, thread / 2);
  };
  std::vector<std::vector<Logits>> expected(kThreads), said(kThreads);
  for (size_t i = 0; i < kThreads; ++i) expected[i] = talk(i);
  at_once([&](size_t i) { said[i] = talk(i); });
  for (size_t i = 0; i < kThreads; ++i) {
    EXPECT_TRUE(said[i] == expected[i]) << i;
  }
}

// Threads that begin with, read, keep and drop snapshots of one tree, which has room for some.
class PrefixTreeThreads : public testing::TestWithParam<const char*> {};

TEST_P(PrefixTreeThreads, EightConversationsShareATree) {
  const auto engine = small_engine();
  const SessionOptions options = small_session(GetParam());
  const auto system = some_ids(70, 1);
  const std::vector<size_t> points = {system.size()};
  const auto prompt_of = [&](size_t thread, size_t turn) {
    auto ids = system;
    for (const int32_t id : some_ids(9, 50 * thread + turn)) ids.push_back(id);
    return ids;
  };
  const auto say = [&](PrefixTree& tree, size_t thread, size_t turn) {
    const auto ids = prompt_of(thread, turn);
    const Prompt prompt{ids, points, "", std::to_string(thread)};
    Session session = tree.begin(options, prompt);
    tree.read(session, prompt);
    const auto logits = session.decode(5);
    tree.keep(session, prompt);
    return Logits(logits.begin(), logits.end());
  };
  size_t bytes = 0;
  {
    PrefixTree probe(engine, {.max_bytes = size_t{1} << 30});
    say(probe, 0, 0);
    bytes = probe.statistics().bytes;
  }
  constexpr size_t kTurns = 2;
  PrefixTree tree(engine, {.max_bytes = 2 * bytes}), none(engine, {});
  std::vector<std::vector<Logits>> expected(kThreads), said(kThreads);
  for (size_t i = 0; i < kThreads; ++i)
    for (size_t turn = 0; turn < kTurns; ++turn) expected[i].push_back(say(none, i, turn));
  say(tree, kThreads, 0);  // whichever thread begins first finds what this one left
  at_once([&](size_t i) {
    for (size_t turn = 0; turn < kTurns; ++turn) {
      said[i].push_back(say(tree, i, turn));
      if (i == turn) tree.shrink(bytes / 2);
    }
  });
  for (size_t i = 0; i < kThreads; ++i) {
    EXPECT_TRUE(said[i] == expected[i]) << i;
  }
  EXPECT_LE(tree.statistics().bytes, 2 * bytes);
  EXPECT_GT(tree.statistics().prompt_hits, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, PrefixTreeThreads,
                         testing::Values("keydiff(budget=32,interval=16)+int4,window=16",
                                         "express(heavy=0,s=32)+csr(online=32),window=16"),
                         [](const auto& i) { return std::to_string(i.index); });

}  // namespace
}  // namespace pith
