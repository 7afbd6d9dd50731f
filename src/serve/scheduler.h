#pragma once
// Who runs when. One thread owns every session: it admits tasks that fit into memory, gives each
// running answer its next token in one pass, and reads prompts chunk by chunk between the passes.
//
//   requests       which are refused at once, and how many there are
//   admission      the queue, and how a task begins
//   batch, passes  the tasks that run, and what the engine is given for them
//   memory_budget  what leaves memory for those that come
//   idle_sessions, continuations, session_spill
//                  conversations between two requests, in memory and in files

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "pith/engine.h"
#include "pith/prefix_tree.h"
#include "pith_serve/serve.h"
#include "serve/admission.h"
#include "serve/batch.h"
#include "serve/continuations.h"
#include "serve/idle_sessions.h"
#include "serve/mailbox.h"
#include "serve/memory_budget.h"
#include "serve/metrics.h"
#include "serve/passes.h"
#include "serve/requests.h"
#include "serve/scheduler_options.h"
#include "serve/session_spill.h"

namespace pith::serve {

class Scheduler {
 public:
  Scheduler(std::shared_ptr<Engine> engine, const SchedulerOptions& options, Metrics& metrics);
  /// Ends what runs.
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Any thread:
  /// Throws Refusal as Requests::accept does.
  void submit(std::shared_ptr<Task> task);
  /// Nothing new is taken; what waits and runs goes on.
  void drain();
  bool draining() const { return requests_.draining(); }
  /// Requests that wait or run.
  size_t busy() const { return requests_.busy(); }
  /// Runs `f` on the scheduler's thread, between two steps, and waits for it. Throws what it
  /// throws.
  void call(const std::function<void()>& f) { mailbox_.call(f); }
  Gauges gauges();
  /// Whether a request of the conversation's waits or runs.
  bool has_request(const std::string& conversation, const std::string& tenant) {
    return requests_.has(conversation, tenant);
  }
  /// An empty session with room for a task's one answer; what may leave memory for it does. Throws
  /// Refusal (503, 507), and as Session's constructor does.
  Session room(const Task& task);
  /// Writes idle conversations to their files. How many are there, and how many are in memory
  /// alone, with the reason.
  Server::Parked park();

  // On the scheduler's thread alone, inside call():
  IdleSessions& idle() { return idle_; }
  PrefixTree& tree() { return tree_; }
  const Batch& batch() const { return batch_; }
  /// Keeps a session under its name, where its conversation's next request finds it.
  void hold(IdleSession session) { idle_.hold(std::move(session), draining()); }
  /// Drops what is a conversation's own: in memory, on disk, in the prefix tree.
  void forget(const std::string& id, const std::string& tenant);

 private:
  void run();

  const std::shared_ptr<Engine> engine_;
  const SchedulerOptions options_;
  PrefixTree tree_;
  Requests requests_;
  Mailbox mailbox_;

  // The scheduler's thread's own.
  SessionSpill spill_;
  IdleSessions idle_;
  Continuations continuations_;
  MemoryBudget memory_;
  Batch batch_;
  Passes passes_;
  Admission admission_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace pith::serve
