#pragma once
// The tasks that run: how they end, and what is left of them.

#include <list>
#include <memory>
#include <string>

#include "serve/idle_sessions.h"
#include "serve/memory_budget.h"
#include "serve/metrics.h"
#include "serve/requests.h"
#include "serve/running.h"

namespace pith::serve {

/// On the scheduler's thread.
class Batch {
 public:
  Batch(Requests& requests, MemoryBudget& memory, IdleSessions& idle, Metrics& metrics)
      : requests_(requests), memory_(memory), idle_(idle), metrics_(metrics) {}

  const std::list<std::unique_ptr<Running>>& running() const { return running_; }
  bool empty() const { return running_.empty(); }
  /// All choices of all tasks.
  size_t answers() const;
  bool has(const std::string& conversation, const std::string& tenant) const;
  void add(std::unique_ptr<Running> running) { running_.push_back(std::move(running)); }

  /// Ends a task whose answers have all ended.
  void settle(Running& r);
  void fail(Running& r, const Refusal& refusal, const char* reason);
  /// Ends those whose clients have gone.
  void drop_gone();
  void remove_ended();
  void report(Gauges& gauges) const;

 private:
  void end(Running& r);
  /// Leaves a session for its conversation's next turn.
  void hold(Running& r);

  Requests& requests_;
  MemoryBudget& memory_;
  IdleSessions& idle_;
  Metrics& metrics_;
  std::list<std::unique_ptr<Running>> running_;
};

}  // namespace pith::serve
