// Room for tasks: a try makes sessions, so the answer stands until something was given back.

#include "serve/memory_budget.h"

#include <gtest/gtest.h>

#include "serve/test_scheduler.h"

namespace pith::serve {
namespace {

class Budget : public testing::Test {
 protected:
  using Room = MemoryBudget::Room;

  Budget() { e_->set_memory_limit(limit_); }
  /// Whether rooms were tried for.
  bool tries(bool runs, Room expected) {
    const uint64_t before = memory_.tries();
    EXPECT_EQ(memory_.make_room(rooms_, *asked_.task, runs, last_), expected);
    return memory_.tries() > before;
  }
  Session session() const { return {e_, asked_.task->session}; }

  const std::shared_ptr<Engine> e_ = engine();
  Journal journal_;
  Asked asked_ = ask("a", journal_, 1500, 100);
  const size_t limit_ = e_->bytes_in_use() + session().room(2048) * 3 / 2;
  Metrics metrics_{"demo"};
  Mailbox mailbox_;
  PrefixTree tree_{e_, {.max_bytes = limit_}};
  SessionSpill spill_{nullptr, mailbox_, metrics_};
  IdleSessions idle_{nullptr, 8, spill_};
  Continuations continuations_{nullptr, tree_, idle_, spill_};
  MemoryBudget memory_{e_, limit_, tree_, idle_, continuations_};
  std::vector<Session> rooms_;
  std::optional<MemoryBudget::Lack> last_;
};

TEST_F(Budget, ANoStandsUntilSomethingIsGivenBack) {
  std::optional<Session> full(session()), other(session());
  other->append(some_ids(100, 1));
  full->reserve(2048);
  EXPECT_TRUE(tries(true, Room::kNone));
  EXPECT_FALSE(tries(true, Room::kNone));
  Session more = session();
  more.append(some_ids(100, 2));  // takes more
  EXPECT_FALSE(tries(true, Room::kNone));
  EXPECT_TRUE(tries(false, Room::kNone)) << "nothing runs any more";
  idle_.forget("nobody", "");
  EXPECT_TRUE(tries(false, Room::kNone)) << "a conversation may have become free to go";
  EXPECT_FALSE(tries(false, Room::kNone));
  other.reset();
  EXPECT_TRUE(tries(false, Room::kNone)) << "too little was given back";
  full.reset();
  EXPECT_TRUE(tries(false, Room::kThere));
  EXPECT_EQ(rooms_.size(), 1u);
}

}  // namespace
}  // namespace pith::serve
