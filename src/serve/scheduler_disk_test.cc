// Conversations that leave memory for files say what they would say without, and none is lost in
// silence.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "serve/test_scheduler.h"

namespace pith::serve {
namespace {

namespace fs = std::filesystem;

constexpr size_t kPrompt = 700, kMore = 9, kAnswer = 20;

class SchedulerDisk : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(testing::TempDir()) / (std::string("pith-disk-") + test->name());
    fs::remove_all(folder_);
  }
  void TearDown() override {
    scheduler_.reset();
    fs::remove_all(folder_);
  }

  std::shared_ptr<ConversationFiles> files(size_t quota = size_t{1} << 30) const {
    return std::make_shared<ConversationFiles>(folder_, quota, 7, ConversationFiles::Owners{});
  }
  /// Memory for one conversation that runs, and not for another that is idle beside it.
  void start_tight(size_t quota = size_t{1} << 30) {
    scheduler_.reset();  // it has the folder
    SchedulerOptions o = options(4);
    Journal unused;
    const size_t one = estimate_ledger(e_->model()->config(), ask("", unused, 1, 1).task->session,
                                       1024, Device::kCpu)
                           .total_bytes();
    o.memory = e_->ledger().total_bytes() + one + one / 2;
    o.files = files(quota);
    scheduler_ = std::make_unique<Scheduler>(e_, o, metrics_);
  }
  void start_plenty() { scheduler_ = std::make_unique<Scheduler>(e_, options(4), metrics_); }

  struct Talk {
    std::string name;
    std::vector<int32_t> past = {};
    std::string said = {};
  };
  /// The next turn: all that was said, then some new words.
  Asked turn(Talk& talk, uint64_t seed) {
    const std::string line = std::to_string(++lines_);
    Asked asked = ask(line, journal_, talk.past.empty() ? kPrompt : kMore, kAnswer, seed);
    asked.task->prompt.insert(asked.task->prompt.begin(), talk.past.begin(), talk.past.end());
    asked.task->conversation = talk.name;
    asked.task->alone = true;
    scheduler_->submit(asked.task);
    journal_.wait(line + " ended", line + " failed");
    talk.past = asked.task->prompt;
    talk.past.insert(talk.past.end(), asked.ear->ids.begin(), asked.ear->ids.end());
    talk.said += asked.ear->said + "|";
    return asked;
  }
  /// Two turns of each, in turns.
  std::vector<Talk> two_turns() {
    std::vector<Talk> talks = {{"a"}, {"b"}, {"c"}};
    for (uint64_t t = 0; t < 2; ++t)
      for (size_t c = 0; c < talks.size(); ++c) {
        const Asked asked = turn(talks[c], 10 * t + c);
        EXPECT_EQ(asked.ear->totals.cached_tokens,
                  t == 0 ? 0 : asked.task->prompt.size() - kMore - 1)
            << asked.ear->totals.reuse_reason;
      }
    return talks;
  }

  const std::shared_ptr<Engine> e_ = engine();
  fs::path folder_;
  Journal journal_;
  Metrics metrics_{"demo"};
  std::unique_ptr<Scheduler> scheduler_;
  int lines_ = 0;
};

TEST_F(SchedulerDisk, ConversationsComeBackAsTheyWereAlsoInAnotherProcess) {
  start_plenty();
  std::vector<Talk> plenty = two_turns();
  for (size_t c = 0; c < plenty.size(); ++c) turn(plenty[c], 50 + c);

  start_tight();
  std::vector<Talk> little = two_turns();
  const Gauges running = scheduler_->gauges();
  EXPECT_GE(running.disk.reads, 3u);
  EXPECT_EQ(running.disk.dropped, 0u);
  EXPECT_EQ(running.disk.failures, 0u);
  const auto parked = scheduler_->park();
  EXPECT_EQ(parked.kept, 3u);
  EXPECT_EQ(parked.lost, 0u) << parked.failure;
  const Gauges after = scheduler_->gauges();
  EXPECT_EQ(after.on_disk, 3u);
  EXPECT_EQ(after.idle, 0u);
  EXPECT_EQ(after.in_use, after.scratch);  // what is on disk takes no memory
  EXPECT_GT(after.disk.bytes, 0u);
  EXPECT_THROW(files(), Error);  // the folder is its own

  start_tight();
  EXPECT_EQ(scheduler_->gauges().on_disk, 3u);
  for (size_t c = 0; c < little.size(); ++c) {
    const Asked asked = turn(little[c], 50 + c);
    EXPECT_EQ(asked.ear->totals.cached_tokens, asked.task->prompt.size() - kMore - 1)
        << asked.ear->totals.reuse_reason;
    EXPECT_EQ(little[c].said, plenty[c].said);
  }
}

TEST_F(SchedulerDisk, AnEarlierTurnIsAskedAgainFromItsFile) {
  SchedulerOptions o = options(4);
  o.files = files();
  scheduler_ = std::make_unique<Scheduler>(e_, o, metrics_);
  Talk talk{"a"};
  turn(talk, 1);
  scheduler_->park();
  const Talk before = talk;
  turn(talk, 2);
  Talk other = before;  // the newest state is no beginning of this
  EXPECT_EQ(turn(other, 3).ear->totals.cached_tokens, before.past.size() - 1);
}

TEST_F(SchedulerDisk, ADamagedFileIsSaidAndPutAside) {
  start_tight();
  Talk talk{"a"};
  turn(talk, 1);
  scheduler_->park();
  fs::path file;
  for (const auto& entry : fs::directory_iterator(folder_))
    if (entry.path().extension() == ".conversation") file = entry.path();
  ASSERT_FALSE(file.empty());
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  const auto middle = static_cast<std::streamoff>(fs::file_size(file) / 2);
  std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
  char byte = 0;
  bytes.seekg(middle).get(byte);
  bytes.seekp(middle).put(static_cast<char>(byte ^ 1));
  bytes.close();
  const Asked asked = turn(talk, 2);
  EXPECT_EQ(asked.ear->said.empty(), false);
  EXPECT_EQ(asked.ear->totals.cached_tokens, 0u);
  EXPECT_NE(asked.ear->totals.reuse_reason.find("is of no use"), std::string::npos)
      << asked.ear->totals.reuse_reason;
  EXPECT_TRUE(fs::exists(file.replace_extension(".damaged")));
  EXPECT_EQ(scheduler_->gauges().disk.failures, 1u);
}

TEST_F(SchedulerDisk, ADiskThatTakesNothingRefusesAndLosesNothing) {
  start_tight();
  Talk first{"a"}, second{"b"};
  turn(first, 1);
  fs::remove_all(folder_);
  turn(second, 2);
  EXPECT_LT(journal_.at("2 failed disk_full"), journal_.lines.size());
  EXPECT_EQ(scheduler_->park().lost, 1u);
  fs::create_directories(folder_);
  second = {"b"};
  turn(second, 2);
  EXPECT_LT(journal_.at("3 ended"), journal_.lines.size());
  const Asked asked = turn(first, 3);
  EXPECT_EQ(asked.ear->totals.cached_tokens, asked.task->prompt.size() - kMore - 1);
  EXPECT_EQ(scheduler_->gauges().disk.dropped, 0u);
}

TEST_F(SchedulerDisk, FilesHaveAQuota) {
  start_tight();
  Talk talk{"a"};
  turn(talk, 1);
  scheduler_->park();
  const size_t one = scheduler_->gauges().disk.bytes;
  start_tight(5 * one / 2);
  for (const char* name : {"b", "c", "d"}) {
    Talk other{name};
    turn(other, 2);
    scheduler_->park();
    EXPECT_LE(scheduler_->gauges().disk.bytes, 5 * one / 2);
  }
  const Gauges now = scheduler_->gauges();
  EXPECT_EQ(now.on_disk, 2u);
  EXPECT_EQ(now.disk.dropped, 2u);
  EXPECT_EQ(scheduler_->idle().find("a", ""), nullptr);  // used least recently
}

TEST_F(SchedulerDisk, WhatIsForgottenLeavesNoFile) {
  start_tight();
  Talk talk{"a"}, other{"b"};
  turn(talk, 1);
  turn(other, 2);
  scheduler_->park();
  scheduler_->call([&] { scheduler_->forget("a", ""); });
  start_tight();
  EXPECT_EQ(scheduler_->gauges().on_disk, 1u);
  EXPECT_EQ(turn(talk, 3).ear->totals.cached_tokens, 0u);
}

TEST_F(SchedulerDisk, ASessionHasOneRequestAtATime) {
  start_plenty();
  Asked first = ask("first", journal_, 8, 1500), second = ask("second", journal_, 8, 2);
  for (Asked* asked : {&first, &second}) asked->task->conversation = "a";
  second.task->alone = true;
  scheduler_->submit(first.task);
  try {
    scheduler_->submit(second.task);
    FAIL() << "it was taken";
  } catch (const Refusal& refusal) {
    EXPECT_EQ(refusal.code, "session_busy");
    EXPECT_EQ(refusal.status, 409);
  }
  ASSERT_TRUE(journal_.wait("first begun"));
  EXPECT_TRUE(scheduler_->has_request("a", ""));
  EXPECT_FALSE(scheduler_->has_request("a", "other tenant"));
  second.task->alone = false;  // a name that requests share
  scheduler_->submit(second.task);
  first.ear->leave = true;
  EXPECT_TRUE(journal_.wait("second ended"));
  EXPECT_TRUE(journal_.wait("first failed cancelled"));
}

}  // namespace
}  // namespace pith::serve
