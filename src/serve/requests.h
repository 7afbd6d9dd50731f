#pragma once
// The requests that wait or run: how many, of which conversations, and which are refused at once.

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "pith/engine.h"
#include "serve/costs.h"
#include "serve/metrics.h"
#include "serve/scheduler_options.h"
#include "serve/task.h"

namespace pith::serve {

/// Any thread may call it.
class Requests {
 public:
  Requests(std::shared_ptr<Engine> engine, const SchedulerOptions& options, Metrics& metrics);

  struct Accepted {
    size_t bytes = 0;  ///< the most that its sessions come to take
    uint64_t number = 0;
  };
  /// Counts a task that may wait. Throws Refusal where the queue is full (503), while draining, for
  /// a task that can never fit (400), and for a conversation that has one (409).
  Accepted accept(const Task& task);

  /// A task leaves the queue. To be said before its client hears of it, which may ask for more.
  void leaves_queue() { --queued_; }
  /// A task's conversation takes another from now on. To be said before its client hears of it,
  /// who may ask at once.
  void leaves_conversation(const Task& task);
  /// A task neither waits nor runs any more.
  void ended() { --busy_; }
  /// The time of a task that ran: retry_after() is estimated from it.
  void took(double seconds) { seconds_each_ = 0.8 * seconds_each_ + 0.2 * seconds; }

  /// True for the first call.
  bool drain() { return !draining_.exchange(true); }
  bool draining() const { return draining_; }
  size_t queued() const { return queued_; }
  size_t busy() const { return busy_; }
  /// Seconds after which a client may try again.
  int retry_after() const;
  bool has(const std::string& conversation, const std::string& tenant);

 private:
  Refusal unavailable(const char* code, const std::string& why) const;

  const std::shared_ptr<Engine> engine_;
  const size_t parallel_, most_queued_, memory_;
  Metrics& metrics_;
  Costs costs_;

  std::mutex lock_;  // of the next two
  uint64_t numbers_ = 0;
  struct OfConversation {
    const Listener* latest = nullptr;
    size_t count = 0;
  };
  std::map<std::pair<std::string, std::string>, OfConversation> named_;  // by tenant and name

  std::atomic<bool> draining_{false};
  std::atomic<size_t> busy_{0}, queued_{0};
  std::atomic<double> seconds_each_{1};
};

}  // namespace pith::serve
