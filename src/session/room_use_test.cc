// Who has room hands it on, and what fails in spite of it.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <new>

#include "pith/own_selector.h"
#include "session/test_company.h"
#include "session/test_demo.h"
#include "session/test_refused.h"
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

/// Keeps the largest positions, and throws at a call of its own.
struct Faulty {
  static constexpr const char* kPolicy = "faulty(budget=16,interval=1000),sink=0,window=8";
  int calls = 0, fails_at = -1;  ///< -1: never
  bool as_allocation = false;

  explicit Faulty() {
    OwnSelector selector{.name = "faulty"};
    selector.score = [this](const RowsToScore& rows, std::span<double> scores) {
      if (calls++ == fails_at) {
        if (as_allocation) throw std::bad_alloc();
        throw Error(ErrorCode::kOutOfMemory, "no memory for scores");
      }
      std::copy_n(rows.positions, rows.rows, scores.begin());
    };
    add_selector(selector);
  }
};

TEST(Room, APromptThatFailsAtItsEndFailsItsSessionAlone) {
  Faulty faulty;
  const auto ids = some_ids(80, 1);
  const auto wide = small_engine();
  Session right(wide, with_policy(Faulty::kPolicy, kContext));
  right.append(ids);
  const int calls = faulty.calls;
  ASSERT_GE(calls, 8) << "heads that select at a prompt's end";
  for (const bool as_allocation : {false, true}) {
    for (const int at : {0, calls / 2, calls - 1}) {
      for (const size_t last : {size_t{1}, size_t{30}}) {
        SCOPED_TRACE(testing::Message() << "call " << at << ", " << last << " tokens");
        faulty.fails_at = -1;
        faulty.as_allocation = as_allocation;
        const auto e = small_engine();
        Session good(e, with_policy("exact", kContext));
        good.append(ids);
        Session bad(e, with_policy(Faulty::kPolicy, kContext));
        bad.append({ids.data(), ids.size() - last}, Append::kPart);
        Session before = bad.fork(), plain = bad.fork();
        const std::span<const int32_t> rest(ids.data() + ids.size() - last, last);
        plain.append(rest, Append::kPromptEnds);
        const auto said = plain.decode(5);
        faulty.calls = 0;
        faulty.fails_at = at;
        Work works[] = {{&bad, rest, Append::kPromptEnds}, {&good, {ids.data(), 1}}};
        e->step(works);
        ASSERT_TRUE(works[0].failure);
        EXPECT_EQ(works[0].failure->code(), kNoMemory);
        EXPECT_TRUE(works[0].appended);
        EXPECT_EQ(bad.tokens(), ids.size());
        EXPECT_EQ(faulty.calls, at + 1);
        EXPECT_FALSE(works[1].failure);
        EXPECT_TRUE(works[1].appended);
        EXPECT_EQ(e->bytes_reserved(), 0u);
        refused(ErrorCode::kInvalidArgument, "failed before", [&] { bad.decode(5); });
        Work again{&bad, {ids.data(), 1}};
        e->step({&again, 1});
        ASSERT_TRUE(again.failure);
        EXPECT_FALSE(again.appended);
        // Its fork and who ran with it go on as ever.
        faulty.fails_at = -1;
        before.append(rest, Append::kPromptEnds);
        const auto now = before.decode(5);
        EXPECT_TRUE(same_bits({now.begin(), now.end()}, {said.begin(), said.end()}));
        Session alone(wide, with_policy("exact", kContext));
        alone.append(ids);
        alone.append({ids.data(), 1});
        const auto theirs = alone.decode(5), ours = good.decode(5);
        EXPECT_TRUE(same_bits({ours.begin(), ours.end()}, {theirs.begin(), theirs.end()}));
      }
    }
  }
}

// A fork that may take so many bytes and no more is refused wherever it comes to them, and may go
// on when there are enough.
TEST(Room, AForkIsRefusedAtEachOfItsBytesAndNothingStaysLocked) {
  const auto e = small_engine();
  Session session(e, with_policy("exact", kContext));
  session.append(some_ids(20, 1));
  const auto before = [&] { return e->bytes_in_use() + e->bytes_reserved(); };
  const size_t idle = before();
  size_t refusals = 0;
  for (size_t more = 64;; more += 192) {
    e->set_memory_limit(idle + more);
    try {
      Session copy = session.fork(Copy::kNow);
      break;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), kNoMemory);
      ASSERT_EQ(before(), idle) << more;
      ++refusals;
    }
  }
  EXPECT_GT(refusals, 100u);
}

TEST(Room, IsAskedForBeforeItIsSetAside) {
  const auto e = small_engine();
  for (const std::string& policy : test::policies()) {
    SCOPED_TRACE(policy);
    Session session(e, with_policy(policy, kContext));
    const size_t in_use = session.ledger().total_bytes() - session.ledger().shared;
    const size_t room = session.room(300);
    EXPECT_GE(
        room,
        estimate_ledger(demo()->config(), session.options(), 300, Device::kCpu).cache_bytes() -
            session.ledger().shared);
    session.reserve(300);
    EXPECT_GE(in_use + e->bytes_reserved(), room);
    EXPECT_LE(e->bytes_reserved(), room);
    refused(ErrorCode::kContextFull, "in a context of 400", [&] { (void)session.room(401); });
  }
}

TEST(Room, ARestoredSessionTakesThatOfTheEmptyOne) {
  const auto ids = some_ids(120, 1);
  const auto e = small_engine();
  const auto path = std::filesystem::path(testing::TempDir()) / "pith-room.session";
  SessionOptions o = with_policy("exact", kContext);
  o.protect = {{0, 8}};
  {
    Session session(e, o);
    session.append(ids);
    session.save(path, {.replace = true});
  }
  Session empty(e, o);
  empty.reserve(200);
  const size_t promised = e->bytes_in_use() + e->bytes_reserved();
  const size_t limit = promised + (size_t{1} << 20);
  e->set_memory_limit(limit);
  // Others have all the rest.
  std::vector<Session> others;
  refused(kNoMemory, "", [&] {
    for (;;) {
      others.emplace_back(e, with_policy("exact", kContext));
      others.back().append(ids);
    }
  });
  Session restored = Session::restore(std::move(empty), path);
  EXPECT_EQ(restored.tokens(), ids.size());
  EXPECT_GT(e->bytes_reserved(), 0u);
  EXPECT_LE(e->bytes_in_use() + e->bytes_reserved(), limit);
  restored.append({ids.data(), 80});
  EXPECT_EQ(e->bytes_reserved(), 0u) << "all has come";
  refused(ErrorCode::kInvalidArgument, "seen 200 tokens",
          [&] { Session::restore(std::move(restored), path); });
  others.clear();
  EXPECT_LE(e->bytes_in_use(), promised);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace pith
