// Who has room hands it on, and what fails in spite of it.

#include <gtest/gtest.h>

#include "pith/error.h"
#include "session/test_company.h"
#include "session/test_demo.h"

namespace pith {
namespace {

using test::demo;
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

}  // namespace
}  // namespace pith
