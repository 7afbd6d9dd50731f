// Who has room hands it on, and what fails in spite of it.

#include <gtest/gtest.h>

#include <filesystem>

#include "pith/error.h"
#include "session/test_company.h"
#include "session/test_demo.h"
#include "session/test_refused.h"

namespace pith {
namespace {

using test::demo;
using test::refused;
using test::some_ids;
using test::with_policy;

constexpr size_t kContext = 400;
constexpr auto kNoMemory = ErrorCode::kOutOfMemory;

std::shared_ptr<Engine> small_engine() {
  EngineOptions o;
  o.threads = 2;
  o.chunk = 48;
  return std::make_shared<Engine>(demo(), o);
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
