// Memory is asked for before a step: where there is none nothing has changed, and the call may be
// given again. Room that is set aside is there.

#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "pith/generate.h"
#include "session/test_company.h"
#include "session/test_demo.h"
#include "session/test_refused.h"
#include "session/test_requests.h"
#include "session/test_room.h"

namespace pith {
namespace {

using test::demo;
using test::Logits;
using test::refused;
using test::same_bits;
using test::small_engine;
using test::some_ids;
using test::with_policy;

constexpr size_t kContext = 400;
constexpr auto kNoMemory = ErrorCode::kOutOfMemory;

/// An engine with so much for sessions.
std::shared_ptr<Engine> engine_for(size_t bytes) {
  static const size_t own = [] {
    const auto e = small_engine();
    Session s(e, with_policy("exact", kContext));
    s.prefill(some_ids(100, 1));
    s.decode(1);
    return e->bytes_in_use();
  }();
  return small_engine(own + bytes);
}

// PITH_REQUESTS: how many, PITH_SEED: which; 100000 take half an hour.
TEST(Room, RandomRequestsAreNeverAboveTheLimitAndNoSessionIsLost) {
  const char* wanted = std::getenv("PITH_REQUESTS");
  std::vector<std::string> policies = test::policies();
  policies.insert(policies.end(), {"exact+int4,prompt=exact", "snapkv(budget=40),prompt=once"});
  test::Requests requests({engine_for(size_t{5} << 20), small_engine(), policies, kContext});
  requests.run(wanted ? std::strtoul(wanted, nullptr, 10) : 200);
}

// A begun prompt is a copy of the session, and has its room. Its rows go before that comes back:
// there is no memory for both.
TEST(Room, ComesBackFromAPromptThatIsDropped) {
  const auto e = engine_for(size_t{7} << 20);
  Session session(e, with_policy("exact,prompt=exact", kContext));
  session.append(some_ids(120, 1));
  ASSERT_TRUE(session.try_reserve(250));
  const auto prompt = some_ids(230, 2);
  Work begun{&session, prompt, Append::kPromptEnds};
  begun.slice = 4;
  e->step({&begun, 1});
  ASSERT_TRUE(begun.goes_on) << (begun.failure ? begun.failure->what() : "");
  std::vector<Session> others;
  refused(kNoMemory, "", [&] {
    while (others.size() < 400) {
      others.emplace_back(e, with_policy("exact", kContext));
      others.back().append(some_ids(30, 3));
    }
  });
  const auto other = some_ids(200, 4);
  session.append(other);
  EXPECT_EQ(session.tokens(), 320u);
  EXPECT_GT(e->bytes_reserved(), 0u) << "for 50 tokens more";
  EXPECT_LE(e->peak_bytes(), e->options().memory_limit);
}

TEST(Room, APromptWithoutRoomChangesNothingAndMayComeAgain) {
  const auto e = engine_for(size_t{17} << 18);
  const auto ids = some_ids(380, 2);
  std::optional<Session> other(std::in_place, e, with_policy("exact", kContext));
  other->append(some_ids(380, 3));
  Session session(e, with_policy("exact,dtype=f32", kContext));
  session.append({ids.data(), 40});
  const auto of_sessions = [&] { return e->bytes_in_use() - e->ledger().total_bytes(); };
  const size_t before = of_sessions();
  refused(kNoMemory, "set aside", [&] { session.append({ids.data() + 40, 340}); });
  EXPECT_EQ(session.tokens(), 40u);
  EXPECT_EQ(of_sessions(), before);
  EXPECT_EQ(e->bytes_reserved(), 0u);
  other.reset();
  const auto said = session.prefill({ids.data() + 40, 340});
  const Logits again(said.begin(), said.end());
  Session alone(small_engine(), with_policy("exact,dtype=f32", kContext));
  alone.append({ids.data(), 40});
  const auto right = alone.prefill({ids.data() + 40, 340});
  EXPECT_TRUE(same_bits(again, {right.begin(), right.end()}));
}

TEST(Room, WhatIsSetAsideIsNobodyElses) {
  for (const char* policy : {"exact", "snapkv(budget=64)+int4", "exact+csr(online=32)",
                             "exact+int4,prompt=exact", "snapkv(budget=64),prompt=once"}) {
    SCOPED_TRACE(policy);
    const auto e = engine_for(size_t{6} << 20);
    Session session(e, with_policy(policy, kContext));
    ASSERT_TRUE(session.try_reserve(300));
    const size_t reserved = e->bytes_reserved();
    EXPECT_GT(reserved, 0u);
    // Others take all the rest.
    std::vector<Session> others;
    const auto fill = [&] {
      while (others.size() < 400) {
        others.emplace_back(e, with_policy("exact", kContext));
        others.back().append(some_ids(100, others.size()));
      }
    };
    refused(kNoMemory, "", fill);
    EXPECT_FALSE(others[0].try_reserve(300));
    const auto ids = some_ids(300, 4);
    session.append({ids.data(), 200});
    EXPECT_GT(e->bytes_reserved(), 0u);
    for (size_t i = 200; i < 300; ++i) {
      session.append({ids.data() + i, 1});
      if (i % 50 == 0) refused(kNoMemory, "", fill);
    }
    EXPECT_EQ(e->bytes_reserved(), 0u) << "all has come";
    EXPECT_LE(e->peak_bytes(), e->options().memory_limit);
  }
}

TEST(Room, GoesWithTheSessionAndIsNotAForks) {
  const auto e = engine_for(size_t{16} << 20);
  Session session(e, with_policy("exact", kContext));
  session.append(some_ids(50, 1));
  session.reserve(100);
  const size_t reserved = e->bytes_reserved();
  const Session fork = session.fork();
  EXPECT_EQ(e->bytes_reserved(), reserved);
  session.reserve(40);
  EXPECT_LT(e->bytes_reserved(), reserved);
  refused(ErrorCode::kContextFull, "in a context of 400", [&] { session.reserve(351); });
  session.reserve(0);
  EXPECT_EQ(e->bytes_reserved(), 0u);
  session.reserve(350);
  Session moved = std::move(session);
  EXPECT_GT(e->bytes_reserved(), 0u);
  moved = Session(e, with_policy("exact", kContext));
  EXPECT_EQ(e->bytes_reserved(), 0u);
  // A prompt that is read exactly by a copy has the session's room, and gives it back.
  Session exact(e, with_policy("exact,prompt=exact", kContext));
  exact.reserve(300);
  const size_t kept = e->bytes_reserved();
  const auto ids = some_ids(200, 2);
  exact.append(ids, [](size_t, size_t) { return false; });
  EXPECT_EQ(exact.tokens(), 0u);
  EXPECT_EQ(e->bytes_reserved(), kept);
}

TEST(Room, LimitsMayChange) {
  const auto e = engine_for(size_t{8} << 20);
  Session kept(e, with_policy("exact", kContext)), other(e, with_policy("exact", kContext));
  kept.append(some_ids(100, 1));
  other.append(some_ids(100, 1));
  kept.reserve(200);
  e->set_memory_limit(e->bytes_in_use() / 2);
  refused(kNoMemory, "", [&] { other.append(some_ids(100, 2)); });
  EXPECT_FALSE(other.try_reserve(1));
  kept.append(some_ids(200, 2));  // promised before
  e->set_memory_limit(0);
  other.append(some_ids(100, 2));
  EXPECT_EQ(other.tokens(), 200u);
}

TEST(Room, AStepSaysWhatBecameOfItsTokens) {
  const auto e = small_engine();
  Session session(e, with_policy("exact", kContext)), full(e, with_policy("exact", 1));
  const auto ids = some_ids(60, 1);
  const uint32_t none = 0;
  Sampler sampler({.temperature = 0});
  sampler.set_mask({&none, 1});
  for (const size_t count : {60, 1}) {
    const size_t before = session.tokens();
    Work works[] = {{&session, {ids.data(), count}}, {&full, {ids.data(), 2}}};
    works[0].sampler = &sampler;
    e->step(works);
    ASSERT_TRUE(works[0].failure);
    EXPECT_EQ(works[0].failure->code(), ErrorCode::kNonFinite);
    EXPECT_TRUE(works[0].appended);
    EXPECT_EQ(session.tokens(), before + count);
    EXPECT_FALSE(works[1].appended);
  }
  session.decode(5);
}

}  // namespace
}  // namespace pith
