// A fork goes on from where it was made: it draws the token that its original would.

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "paths.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/session.h"

namespace pith {
namespace {

std::shared_ptr<const Model> demo() {
  static const auto model = Model::load(repo_dir() / "models/demo");
  return model;
}

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
    const int32_t expected = session.sample(greedy, {});
    EXPECT_EQ(fork.sample(greedy, {}), expected) << count;
    EXPECT_EQ(second.sample(greedy, {}), expected) << count;
    const auto logits = session.decode(expected);
    const std::vector<float> wanted(logits.begin(), logits.end());
    const auto forked = fork.decode(expected);
    EXPECT_EQ(std::vector<float>(forked.begin(), forked.end()), wanted);
  }
  Session empty(demo(), small());
  Sampler greedy({.temperature = 0});
  EXPECT_THROW(empty.fork().sample(greedy, {}), Error);
}

TEST(Fork, ManyAtOnceOnOneTeamOfThreadsSayWhatOneSays) {
  Session base(demo(), small());
  base.append(some_ids(40));
  const auto answer = [&] {
    Session fork = base.fork();
    Sampler greedy({.temperature = 0});
    std::vector<int32_t> ids;
    for (int i = 0; i < 8; ++i) {
      ids.push_back(fork.sample(greedy, {}));
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
