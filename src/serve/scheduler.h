#pragma once
// Who runs when. One thread owns every session: it admits what fits into memory, gives each running
// answer its next token in one pass, and reads prompts chunk by chunk between the passes.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "pith/engine.h"
#include "pith/prefix_tree.h"
#include "serve/books.h"
#include "serve/metrics.h"
#include "serve/running.h"
#include "serve/task.h"

namespace pith::serve {

struct SchedulerOptions {
  size_t parallel = 16;  ///< answers at once
  size_t queue = 256;    ///< requests that wait
  double queue_seconds = 60;
  size_t memory = 0;  ///< bytes of all caches and scratch
  /// Of the clock for reading prompts while answers are being made; in (0, 1].
  double prefill_share = 0.5;
  size_t snapshot_bytes = 0, largest_snapshot = 0;  ///< of the prefix tree; 0: none is kept
  size_t idle_sessions = 1024;                      ///< named ones that are held at most
};

/// A named conversation between two requests.
struct IdleSession {
  std::string id, tenant, policy;
  std::shared_ptr<Session> session;
  std::string prompt_tenant;  ///< what its prompts are kept under
  int64_t used = 0;           ///< unix seconds
};

class Scheduler {
 public:
  Scheduler(std::shared_ptr<Engine> engine, const SchedulerOptions& options, Metrics& metrics);
  /// Ends what runs.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// Any thread. Throws Refusal where the queue is full (503), while draining, and for a task that
  /// can never fit (400).
  void submit(std::shared_ptr<Task> task);
  /// Nothing new is taken; what waits and runs goes on.
  void drain() { draining_ = true; }
  bool draining() const { return draining_; }
  /// Requests that wait or run.
  size_t busy() const { return busy_; }
  /// Runs `f` on the scheduler's thread, between two steps, and waits for it. Throws what it
  /// throws.
  void call(const std::function<void()>& f);
  Gauges gauges();

  // On the scheduler's thread alone, inside call():
  std::list<IdleSession>& idle() { return idle_; }
  /// Keeps a session under its name, where its conversation's next request finds it.
  void hold(IdleSession session);
  PrefixTree& tree() { return tree_; }
  bool is_running(const std::string& conversation, const std::string& tenant) const;
  const std::list<std::unique_ptr<Running>>& running() const { return running_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Waiting {
    std::shared_ptr<Task> task;
    size_t bytes = 0;
    uint64_t number = 0;
    Clock::time_point since;
  };

  void run();
  void take_arrivals();
  void drop_gone();
  void admit();
  bool make_room(size_t bytes);
  void begin(Waiting& waiting);
  void decode_pass();
  void read_chunk();
  Running* next_to_read();
  void prompt_read(Running& r, std::span<const float> logits);
  void settle(Running& r);
  void fail(Running& r, const Refusal& refusal, const char* reason);
  void remove_ended();
  void end(Running& r);
  size_t retry_after() const;

  const std::shared_ptr<Engine> engine_;
  const SchedulerOptions options_;
  Metrics& metrics_;
  PrefixTree tree_;
  Books books_;
  std::mutex costs_lock_;
  Costs costs_;

  std::mutex lock_;  // of the next four
  std::condition_variable wake_;
  std::deque<Waiting> arrivals_;
  std::deque<std::function<void()>> commands_;
  bool stop_ = false;
  uint64_t numbers_ = 0;

  std::atomic<bool> draining_{false};
  std::atomic<size_t> busy_{0}, queued_{0};
  std::atomic<double> seconds_a_request_{1};

  // The scheduler's thread's own.
  std::vector<Waiting> waiting_;  // in the order of their turn
  std::list<std::unique_ptr<Running>> running_;
  std::list<IdleSession> idle_;  // least recently used first
  double owed_ = 0;              // seconds that passes of decode have before the next chunk
  std::thread thread_;           // last: it uses all of the above
};

}  // namespace pith::serve
