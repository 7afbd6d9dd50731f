// The order of turns, cancellation, and that answers depend on neither.

#include <gtest/gtest.h>

#include "serve/test_scheduler.h"

namespace pith::serve {
namespace {

TEST(Scheduler, ShortPromptsPassLongOnesAndAnswersGoOn) {
  Journal journal;
  Metrics metrics("demo");
  Scheduler scheduler(engine(), options(8), metrics);
  const Asked talk = ask("talk", journal, 8, 60, 3);
  scheduler.submit(talk.task);
  ASSERT_TRUE(journal.wait("talk speaks"));
  // Both come in one instant, between two steps.
  const Asked longer = ask("long", journal, 900, 2, 4), quick = ask("quick", journal, 10, 2, 5);
  scheduler.submit(longer.task);
  scheduler.submit(quick.task);
  for (const char* name : {"talk ended", "long ended", "quick ended"})
    ASSERT_TRUE(journal.wait(name));
  EXPECT_LT(journal.at("quick speaks"), journal.at("long speaks"));
  EXPECT_LT(journal.at("long reads"), journal.at("talk ended"));
  EXPECT_EQ(talk.ear->totals.drawn_tokens, 60u);
}

TEST(Scheduler, PrioritiesGoFirstInTheQueue) {
  Journal journal;
  Metrics metrics("demo");
  Scheduler scheduler(engine(), options(1), metrics);
  const Asked first = ask("first", journal, 200, 30);
  Asked low = ask("low", journal, 10, 2), high = ask("high", journal, 10, 2);
  high.task->priority = -1;
  scheduler.submit(first.task);
  ASSERT_TRUE(journal.wait("first begun"));
  scheduler.submit(low.task);
  scheduler.submit(high.task);
  ASSERT_TRUE(journal.wait("low ended"));
  EXPECT_LT(journal.at("high ended"), journal.at("low begun"));
  EXPECT_LT(journal.at("first ended"), journal.at("high begun"));
}

TEST(Scheduler, WhoLeavesIsDroppedWithinAChunk) {
  Journal journal;
  Metrics metrics("demo");
  Scheduler scheduler(engine(), options(2), metrics);
  const Asked reader = ask("reader", journal, 1900, 2), writer = ask("writer", journal, 8, 1500);
  scheduler.submit(writer.task);
  ASSERT_TRUE(journal.wait("writer speaks"));
  scheduler.submit(reader.task);
  ASSERT_TRUE(journal.wait("reader reads"));
  reader.ear->leave = true;
  ASSERT_TRUE(journal.wait("reader failed cancelled"));
  writer.ear->leave = true;
  ASSERT_TRUE(journal.wait("writer failed cancelled"));
  const Gauges after = scheduler.gauges();
  EXPECT_EQ(after.reserved, 0u);
  EXPECT_EQ(after.running, 0u);
  EXPECT_EQ(after.in_use, after.scratch);
  EXPECT_EQ(scheduler.busy(), 0u);
}

/// Counts the passes of decode before each chunk of its prompt, and may leave at one.
class Watcher : public Ear {
 public:
  Watcher(const std::string& name, Journal& journal, const Metrics& metrics)
      : Ear(name, journal), metrics_(metrics) {}
  void read(size_t done, size_t cached, size_t total) override {
    const std::string text = metrics_.text({}), name = "\nllamacpp:n_decode_total{";
    const size_t at = text.find('}', text.find(name));
    passes.push_back(std::stoul(text.substr(at + 1)));
    if (passes.size() == leave_after) leave = true;
    Ear::read(done, cached, total);
  }

  size_t leave_after = SIZE_MAX;
  std::vector<size_t> passes;

 private:
  const Metrics& metrics_;
};

// The bound of a gap between tokens, counted: time depends on who else uses the machine.
TEST(Scheduler, BetweenTwoPassesIsAtMostAChunk) {
  Journal journal;
  Metrics metrics("demo");
  SchedulerOptions o = options(3);
  o.prefill_share = 1;  // nothing is owed to those who write: a pass between chunks all the same
  Scheduler scheduler(engine(), o, metrics);
  const Asked writer = ask("writer", journal, 8, 1900);
  scheduler.submit(writer.task);
  ASSERT_TRUE(journal.wait("writer speaks"));
  std::vector<std::shared_ptr<Watcher>> readers;
  for (const char* name : {"one", "two"}) {
    const Asked reader = ask(name, journal, 1900, 1, readers.size());
    readers.push_back(std::make_shared<Watcher>(name, journal, metrics));
    reader.task->listener = readers.back();
    scheduler.submit(reader.task);
  }
  ASSERT_TRUE(journal.wait("two ended"));
  EXPECT_LT(journal.at("two ended"), journal.at("writer ended"));  // it wrote all the time
  std::vector<size_t> passes;
  for (const auto& reader : readers)
    passes.insert(passes.end(), reader->passes.begin(), reader->passes.end());
  EXPECT_GE(passes.size(), 2 * 1900 / engine()->options().chunk);
  std::ranges::sort(passes);
  EXPECT_EQ(std::ranges::adjacent_find(passes), passes.end()) << "two chunks without a pass";
  writer.ear->leave = true;
  ASSERT_TRUE(journal.wait("writer failed cancelled"));
}

TEST(Scheduler, WhoLeavesInAPromptReadsNoFurther) {
  Journal journal;
  Metrics metrics("demo");
  Scheduler scheduler(engine(), options(2), metrics);
  const Asked reader = ask("reader", journal, 1900, 2);
  const auto watcher = std::make_shared<Watcher>("reader", journal, metrics);
  watcher->leave_after = 3;
  reader.task->listener = watcher;
  scheduler.submit(reader.task);
  ASSERT_TRUE(journal.wait("reader failed cancelled"));
  EXPECT_EQ(watcher->passes.size(), 3u);
  EXPECT_EQ(scheduler.gauges().reserved, 0u);
}

TEST(Scheduler, AnswersAreThoseOfGenerate) {
  Journal journal;
  Metrics metrics("demo");
  const auto shared = engine();
  Scheduler scheduler(shared, options(4), metrics);
  std::vector<Asked> asked;
  for (size_t i = 0; i < 4; ++i) {
    asked.push_back(ask("t" + std::to_string(i), journal, 50 + 60 * i, 25, 10 + i));
    scheduler.submit(asked.back().task);
  }
  for (size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(journal.wait("t" + std::to_string(i) + " ended"));
    Session alone(shared, asked[i].task->session);
    GenerateOptions o;
    o.sampling = asked[i].task->sampling;
    o.sampling.never = {0};
    o.max_tokens = 25;
    EXPECT_EQ(asked[i].ear->said, generate(alone, asked[i].task->prompt, o).text) << i;
  }
}

TEST(Scheduler, WhatCannotFitIsRefusedAtOnceAndWhatDoesNotFitNowWaits) {
  Journal journal;
  Metrics metrics("demo");
  SchedulerOptions o = options(8);
  const auto shared = engine();
  const size_t one = estimate_ledger(shared->model()->config(),
                                     ask("", journal, 1, 1).task->session, 1024, Device::kCpu)
                         .total_bytes();
  o.memory = shared->ledger().total_bytes() + one + one / 2;
  Scheduler scheduler(shared, o, metrics);
  const Asked large = ask("large", journal, 1900, 100);
  try {
    scheduler.submit(large.task);
    FAIL() << "it was taken";
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.code, "memory_budget_exceeded");
  }
  const Asked first = ask("first", journal, 900, 100), second = ask("second", journal, 900, 100);
  scheduler.submit(first.task);
  scheduler.submit(second.task);
  ASSERT_TRUE(journal.wait("second ended"));
  EXPECT_LT(journal.at("first ended"), journal.at("second begun"));
  EXPECT_LE(shared->peak_bytes(), o.memory);
}

/// Notes what is taken and set aside for sessions when it begins.
class Accountant : public Ear {
 public:
  Accountant(Journal& journal, std::shared_ptr<Engine> engine)
      : Ear("account", journal), engine_(std::move(engine)) {}
  void begun(size_t first, size_t count) override {
    held = engine_->bytes_in_use() + engine_->bytes_reserved() - engine_->ledger().total_bytes();
    Ear::begun(first, count);
  }
  size_t held = 0;

 private:
  const std::shared_ptr<Engine> engine_;
};

TEST(Scheduler, EachChoiceHasRoomInTheEngineFromItsBeginning) {
  Journal journal;
  Metrics metrics("demo");
  const auto shared = engine();
  const Asked three = ask("", journal, 492, 20), late = ask("late", journal, 492, 20);
  const size_t one = Session(shared, three.task->session).room(512);
  SchedulerOptions o = options(8);
  Scheduler(shared, o, metrics).gauges();  // the engine's own buffers are made
  o.memory = shared->bytes_in_use() + 5 * one;
  Scheduler scheduler(shared, o, metrics);
  const auto account = std::make_shared<Accountant>(journal, shared);
  three.task->listener = account;
  three.task->choices = 3;
  scheduler.submit(three.task);
  scheduler.submit(late.task);
  ASSERT_TRUE(journal.wait("account ended"));
  ASSERT_TRUE(journal.wait("late ended"));
  EXPECT_GE(account->held, 3 * one);
  EXPECT_GE(account->totals.reserved_bytes, 3 * one);
  EXPECT_EQ(account->totals.drawn_tokens, 60u);
  EXPECT_EQ(scheduler.gauges().reserved, 0u);
  EXPECT_EQ(shared->bytes_reserved(), 0u);
  EXPECT_LE(shared->peak_bytes(), o.memory);
}

TEST(Scheduler, DrainingTakesNothingNew) {
  Journal journal;
  Metrics metrics("demo");
  Scheduler scheduler(engine(), options(1), metrics);
  const Asked last = ask("last", journal, 8, 20), late = ask("late", journal, 8, 2);
  scheduler.submit(last.task);
  scheduler.drain();
  EXPECT_THROW(scheduler.submit(late.task), Refusal);
  EXPECT_TRUE(journal.wait("last ended"));
}

}  // namespace
}  // namespace pith::serve
