#pragma once
// The queue: who waits, in which order, and how a task begins when there is room for it.

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pith/engine.h"
#include "pith/prefix_tree.h"
#include "serve/batch.h"
#include "serve/continuations.h"
#include "serve/memory_budget.h"
#include "serve/metrics.h"
#include "serve/requests.h"
#include "serve/scheduler_options.h"

namespace pith::serve {

/// On the scheduler's thread.
class Admission {
 public:
  /// The other parts of the scheduler.
  struct Parts {
    Requests& requests;
    PrefixTree& tree;
    IdleSessions& idle;
    Continuations& continuations;
    MemoryBudget& memory;
    Batch& batch;
    Metrics& metrics;
  };
  Admission(std::shared_ptr<Engine> engine, const SchedulerOptions& options, const Parts& parts);

  using Clock = std::chrono::steady_clock;
  /// Puts a task into the queue: by priority, then as they came.
  void add(std::shared_ptr<Task> task, const Requests::Accepted& accepted, Clock::time_point since);
  bool empty() const { return waiting_.empty(); }
  /// Whether who is first in the queue waits for a file to be written or read.
  bool waits_for_disk() const { return waits_for_disk_; }
  /// Takes out those whose clients have gone, and those that have waited too long.
  void drop_gone();
  /// Begins those for whom there is room, in order.
  void admit();
  void fail_all(const Refusal& refusal);
  void report(Gauges& gauges) const;

 private:
  struct Waiting {
    std::shared_ptr<Task> task;
    size_t bytes = 0;
    uint64_t number = 0;
    Clock::time_point since;
    /// Empty sessions, one per choice, with room for all that these come to.
    std::vector<Session> rooms = {};
    /// Its conversation's file, if it continues from one. The first room is the file's meanwhile.
    enum class Fetch : uint8_t { kNot, kReading, kRead, kFailed } fetch = Fetch::kNot;
    std::shared_ptr<Session> fetched = {};
    std::string fetch_failure = {};
    std::optional<MemoryBudget::Lack> lack = {};
    bool tried = false;   // to make room
    bool looked = false;  // for its conversation at servers that leave
    int tries = 0;        // to begin
  };
  /// The fate of the first in the queue.
  enum class Next : uint8_t { kWaits, kWaitsForDisk, kAgain, kLeaves };

  Next try_first();
  Next make_room(Waiting& waiting);
  void refuse(const Task& task, const Refusal& refusal);
  /// Begins to read the file from which a task continues; false: there is none.
  bool fetch(Waiting& waiting);
  void fetched(uint64_t number, std::shared_ptr<Session> session, const std::string& failure);
  /// kAgain: it waits for memory once more.
  Next begin(Waiting& waiting);
  void start(Running& r, Waiting& waiting);

  const std::shared_ptr<Engine> engine_;
  const size_t parallel_;
  const double queue_seconds_;
  const Parts parts_;
  std::vector<Waiting> waiting_;  // in the order of their turn
  bool waits_for_disk_ = false;
};

}  // namespace pith::serve
