// Memory is asked for before a step on the GPU, as on the CPU (src/session/room_test.cc): where
// there is none nothing has changed, and room that is set aside is there.

#include <cstdlib>
#include <optional>

#include "pith/engine.h"
#include "pith/error.h"
#include "random_model.h"
#include "session/test_refused.h"
#include "session/test_requests.h"
#include "sessions.h"

namespace pith::cuda {
namespace {

using test::refused;
using test::same_bits;
using test::with_policy;

constexpr size_t kContext = 300;
constexpr auto kNoMemory = ErrorCode::kOutOfMemory;

std::shared_ptr<const Model> model() {
  static const auto loaded = RandomModelFolder({.hidden = 64, .inner = 64, .vocab = 61}).load();
  return loaded;
}

std::shared_ptr<Engine> engine_of(size_t limit = 0) {
  EngineOptions o;
  o.device = Device::kCuda;
  o.chunk = 48;
  o.parallel = 4;
  o.memory_limit = limit;
  return std::make_shared<Engine>(model(), o);
}

/// An engine with so much for sessions beside the scratch memory of such a one's.
std::shared_ptr<Engine> engine_for(const std::string& policy, size_t bytes) {
  const auto e = engine_of();
  {
    Session s(e, with_policy(policy, kContext));
    s.prefill(random_ids(100, 61, 1));
    s.decode(1);
  }
  return engine_of(e->bytes_in_use() + bytes);
}

bool is_there(const std::shared_ptr<Engine>& engine, const std::string& policy) {
  try {
    Session(engine, with_policy(policy, kContext));
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUnsupported) << e.what();
    return false;
  }
  return true;
}

// PITH_REQUESTS: how many, PITH_SEED: which.
TEST(CudaRoom, RandomRequestsAreNeverAboveTheLimitAndNoSessionIsLost) {
  PITH_NEEDS_GPU();
  const char* wanted = std::getenv("PITH_REQUESTS");
  const size_t count = wanted ? std::strtoul(wanted, nullptr, 10) : emulated() ? 150 : 1000;
  std::vector<std::string> policies = test::policies();
  policies.insert(policies.end(), {"exact+int4,prompt=exact", "snapkv(budget=40),prompt=once"});
  const auto wide = engine_of();
  std::erase_if(policies, [&](const std::string& policy) { return !is_there(wide, policy); });
  test::Requests(
      {engine_for("snapkv(budget=40)+int8", size_t{1600} << 10), wide, policies, kContext})
      .run(count);
}

TEST(CudaRoom, APromptWithoutRoomChangesNothingAndMayComeAgain) {
  PITH_NEEDS_GPU();
  const auto e = engine_for("exact", size_t{600} << 10);
  const auto ids = random_ids(280, 61, 2);
  std::optional<Session> other(std::in_place, e, with_policy("exact", kContext));
  other->append(random_ids(280, 61, 3));
  Session session(e, with_policy("exact", kContext));
  session.append({ids.data(), 20});
  const size_t before = e->bytes_in_use();
  refused(kNoMemory, "set aside", [&] { session.append({ids.data() + 20, 260}); });
  EXPECT_EQ(session.tokens(), 20u);
  EXPECT_EQ(e->bytes_in_use(), before);
  EXPECT_EQ(e->bytes_reserved(), 0u);
  other.reset();
  const auto said = session.prefill({ids.data() + 20, 260});
  const test::Logits again(said.begin(), said.end());
  Session alone(engine_of(), with_policy("exact", kContext));
  alone.append({ids.data(), 20});
  const auto right = alone.prefill({ids.data() + 20, 260});
  EXPECT_TRUE(same_bits(again, {right.begin(), right.end()}));
}

TEST(CudaRoom, WhatIsSetAsideIsNobodyElses) {
  PITH_NEEDS_GPU();
  for (const char* policy :
       {"exact", "snapkv(budget=64)+int4", "exact+int4,prompt=exact", "snapkv(budget=64)"}) {
    SCOPED_TRACE(policy);
    const auto e = engine_for("exact+int4,window=16", size_t{3} << 20);
    Session session(e, with_policy(policy, kContext));
    ASSERT_TRUE(session.try_reserve(120));
    EXPECT_GT(e->bytes_reserved(), 0u);
    std::vector<Session> others;
    const auto fill = [&] {
      while (others.size() < 400) {
        others.emplace_back(e, with_policy("exact", kContext));
        others.back().append(random_ids(100, 61, 5));
      }
    };
    refused(kNoMemory, "", fill);
    EXPECT_FALSE(others[0].try_reserve(150));
    const auto ids = random_ids(120, 61, 4);
    session.append({ids.data(), 100});
    EXPECT_GT(e->bytes_reserved(), 0u);
    for (size_t i = 100; i < ids.size(); ++i) session.append({ids.data() + i, 1});
    EXPECT_EQ(e->bytes_reserved(), 0u) << "all has come";
    EXPECT_LE(e->peak_bytes(), e->options().memory_limit);
  }
}

// Splits of 64 sessions go through scratch memory a part at a time.
TEST(CudaRoom, ScratchDoesNotGrowWithAllThatMayJoin) {
  PITH_NEEDS_GPU();
  EngineOptions o;
  o.device = Device::kCuda;
  o.parallel = 64;
  const auto many =
      RandomModelFolder({.layers = 16, .hidden = 64, .inner = 64, .vocab = 61}).load();
  const auto engine = std::make_shared<Engine>(many, o);
  const Session session(engine, with_policy("express(s=25%,heavy=25%)+int4", 8000));
  EXPECT_LT(session.room(7000), size_t{400} << 20);  // 738 MB if all were split at once
}

// Scratch is the engine's: a second session asks for its own rows alone.
TEST(CudaRoom, OfASecondSessionHasNoScratch) {
  PITH_NEEDS_GPU();
  for (const char* policy : {"exact", "exact+int4", "express(s=16,heavy=16)+int4,window=16"}) {
    SCOPED_TRACE(policy);
    const auto e = engine_of();
    Session first(e, with_policy(policy, kContext)), second(e, with_policy(policy, kContext));
    const size_t alone = second.room(kContext);
    first.reserve(kContext);
    const size_t room = second.room(kContext), before = e->bytes_in_use() + e->bytes_reserved();
    EXPECT_LT(room, alone);
    second.reserve(kContext);
    const size_t more = e->bytes_in_use() + e->bytes_reserved() - before;
    EXPECT_LE(more, room);
    EXPECT_GE(more + second.ledger().total_bytes(), room);
  }
}

TEST(CudaRoom, GoesWithTheSessionAndIsNotAForks) {
  PITH_NEEDS_GPU();
  const auto e = engine_for("exact", size_t{16} << 20);
  Session session(e, with_policy("exact", kContext));
  session.append(random_ids(50, 61, 1));
  session.reserve(100);
  const size_t reserved = e->bytes_reserved();
  const Session fork = session.fork();
  EXPECT_EQ(e->bytes_reserved(), reserved);
  session.reserve(0);
  EXPECT_EQ(e->bytes_reserved(), 0u);
  session.reserve(250);
  EXPECT_GT(e->bytes_reserved(), reserved);
  session = Session(e, with_policy("exact", kContext));
  EXPECT_EQ(e->bytes_reserved(), 0u);
}

}  // namespace
}  // namespace pith::cuda
