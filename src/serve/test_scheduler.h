#pragma once
// For tests of schedulers: tasks of the demo model, and a journal of what they did.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>

#include "paths.h"
#include "serve/scheduler.h"
#include "session/test_company.h"

namespace pith::serve {

using test::some_ids;

inline std::shared_ptr<Engine> engine() {
  static const auto model = Model::load(repo_dir() / "models/demo", false);
  EngineOptions o;
  o.threads = 1;
  o.chunk = 64;
  return std::make_shared<Engine>(model, o);
}

/// The events of all tasks of a test, in order.
struct Journal {
  std::mutex lock;
  std::condition_variable changed;
  std::vector<std::string> lines;
  void add(const std::string& line) {
    const std::lock_guard guard(lock);
    lines.push_back(line);
    changed.notify_all();
  }
  size_t at(const std::string& line) {
    const std::lock_guard guard(lock);
    return static_cast<size_t>(std::find(lines.begin(), lines.end(), line) - lines.begin());
  }
  bool wait(const std::string& line) { return wait(line, line); }
  /// Until a line begins with one of these.
  bool wait(const std::string& one, const std::string& other) {
    std::unique_lock guard(lock);
    return changed.wait_for(guard, std::chrono::seconds(60), [&] {
      return std::ranges::any_of(lines, [&](const std::string& line) {
        return line.starts_with(one) || line.starts_with(other);
      });
    });
  }
};

class Ear : public Listener {
 public:
  Ear(std::string name, Journal& journal) : name_(std::move(name)), journal_(journal) {}
  void begun(size_t, size_t) override { journal_.add(name_ + " begun"); }
  void read(size_t done, size_t, size_t total) override {
    if (done < total) journal_.add(name_ + " reads");
  }
  void piece(size_t, std::string_view text, std::span<const TokenShown>,
             std::span<const int32_t> tokens) override {
    said += text;
    ids.insert(ids.end(), tokens.begin(), tokens.end());
    if (!first_.exchange(true)) journal_.add(name_ + " speaks");
  }
  void choice_ended(size_t, StopReason) override {}
  void ended(const Totals& t) override {
    totals = t;
    journal_.add(name_ + " ended");
  }
  void failed(const Refusal& refusal) override { journal_.add(name_ + " failed " + refusal.code); }
  bool gone() const override { return leave; }

  std::atomic<bool> leave{false};
  std::string said;
  std::vector<int32_t> ids;
  Totals totals;

 private:
  const std::string name_;
  Journal& journal_;
  std::atomic<bool> first_{false};
};

struct Asked {
  std::shared_ptr<Task> task = std::make_shared<Task>();
  std::shared_ptr<Ear> ear;
};

inline Asked ask(const std::string& name, Journal& journal, size_t prompt, size_t answer,
                 uint64_t seed = 1) {
  Asked out;
  out.ear = std::make_shared<Ear>(name, journal);
  out.task->prompt = some_ids(prompt, seed);
  out.task->max_tokens = answer;
  out.task->sampling.temperature = 0;
  out.task->session.context = 2048;
  out.task->policy = "exact";
  out.task->ignore_eos = true;
  out.task->ends = {0};
  out.task->listener = out.ear;
  return out;
}

inline SchedulerOptions options(size_t parallel) {
  SchedulerOptions o;
  o.parallel = parallel;
  o.memory = size_t{256} << 20;
  return o;
}

}  // namespace pith::serve
