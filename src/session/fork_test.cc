// A fork continues where it was made: it draws the token that its original would.

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <thread>

#include "pith/error.h"
#include "pith/generate.h"
#include "pith/session.h"
#include "session/test_demo.h"

namespace pith {
namespace {

using test::demo;

StandaloneOptions small() {
  StandaloneOptions o;
  o.context = 200;
  o.chunk = 16;
  o.threads = 2;
  return o;
}

std::vector<int32_t> some_ids(size_t count) {
  std::vector<int32_t> ids(count);
  for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(10 + 7 * i % 300);
  return ids;
}

TEST(Fork, DrawsFromTheLastTokenOfItsOriginal) {
  for (const size_t count : {size_t{1}, size_t{16}, size_t{37}}) {
    Session session(demo(), small());
    session.append(some_ids(count));
    Session fork = session.fork();
    Session second = fork.fork();  // of one that has run nothing itself
    Sampler greedy({.temperature = 0});
    const int32_t expected = session.sample(greedy);
    EXPECT_EQ(fork.sample(greedy), expected) << count;
    EXPECT_EQ(second.sample(greedy), expected) << count;
    const auto logits = session.decode(expected);
    const std::vector<float> wanted(logits.begin(), logits.end());
    const auto forked = fork.decode(expected);
    EXPECT_EQ(std::vector<float>(forked.begin(), forked.end()), wanted);
  }
  Session empty(demo(), small());
  Sampler greedy({.temperature = 0});
  EXPECT_THROW(empty.fork().sample(greedy), Error);
}

// Parts that a fork shares with its original take no memory, and reading them takes none. Where
// there is none left to continue, the fork is as it was.
TEST(Fork, WithoutRoomToGoOnItIsAsItWas) {
  EngineOptions o;
  o.threads = 1;
  o.chunk = 16;
  const size_t empty = Engine(demo(), o).bytes_in_use();
  o.memory_limit = empty + (size_t{6} << 20);
  const auto engine = std::make_shared<Engine>(demo(), o);
  SessionOptions options;
  options.context = 400;
  Session base(engine, options);
  base.append(some_ids(300));
  const size_t before = engine->bytes_in_use();
  std::vector<Session> forks;
  for (int i = 0; i < 40; ++i) forks.push_back(base.fork());
  const auto file = std::filesystem::temp_directory_path() / "pith_fork_test.session";
  forks[3].save(file, {.replace = true});
  std::filesystem::remove(file);
  EXPECT_EQ(forks[5].rows(1, 0).positions.size(), 300u);
  EXPECT_EQ(forks[5].ledger().total_bytes(), base.ledger().total_bytes());
  EXPECT_EQ(engine->bytes_in_use(), before);
  EXPECT_THROW(
      {
        std::vector<Session> now;
        for (int i = 0; i < 40; ++i) now.push_back(base.fork(Copy::kNow));
      },
      Error);
  EXPECT_EQ(engine->bytes_in_use(), before);

  const int32_t id = 9;
  std::vector<Work> works;
  for (Session& fork : forks) works.push_back({&fork, {&id, 1}});
  engine->step(works);
  std::vector<Session*> refused;
  for (const Work& w : works) {
    if (!w.failure) continue;
    EXPECT_EQ(w.failure->code(), ErrorCode::kOutOfMemory);
    EXPECT_EQ(w.session->tokens(), 300u);
    refused.push_back(w.session);
  }
  ASSERT_GT(refused.size(), 5u);
  ASSERT_LT(refused.size(), 40u);
  Session last = std::move(*refused.back());
  EXPECT_THROW(last.append({&id, 1}), Error);
  forks.clear();
  const auto went = base.decode(id), late = last.decode(id);
  EXPECT_EQ(std::vector<float>(late.begin(), late.end()),
            std::vector<float>(went.begin(), went.end()));
}

TEST(Fork, ManyAtOnceOnOneTeamOfThreadsSayWhatOneSays) {
  Session base(demo(), small());
  base.append(some_ids(40));
  const auto answer = [&] {
    Session fork = base.fork();
    Sampler greedy({.temperature = 0});
    std::vector<int32_t> ids;
    for (int i = 0; i < 8; ++i) {
      ids.push_back(fork.sample(greedy));
      fork.append({&ids.back(), 1});
    }
    return ids;
  };
  const auto seconds = [](const auto& work) {
    const auto begun = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  };
  const auto expected = answer();
  std::vector<std::vector<int32_t>> answers(4), others(4);
  const double alone = seconds([&] {
    for (auto& ids : others) ids = answer();
  });
  const double together = seconds([&] {
    std::vector<std::thread> threads;
    for (auto& ids : answers) threads.emplace_back([&] { ids = answer(); });
    for (auto& thread : threads) thread.join();
  });
  for (const auto& ids : answers) EXPECT_EQ(ids, expected);
  // Loops that waited for each other's team took 4 to 16 times as long; other work may be going on.
  EXPECT_LT(together, 4 * alone + 1);
}

TEST(Fork, AnErrorProbeOfNonsenseRowsIsRefused) {
  StandaloneOptions o = small();
  for (const size_t rows : {size_t{1}, ~size_t{0}, size_t{1} << 40}) {
    o.error_probe.rows = rows;
    EXPECT_THROW(Session(demo(), o), Error) << rows;
  }
}

}  // namespace
}  // namespace pith
