#pragma once
// Who runs when. One thread owns every session: it admits what fits into memory, gives each running
// answer its next token in one pass, and reads prompts chunk by chunk between the passes.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "pith/engine.h"
#include "pith/prefix_tree.h"
#include "pith_serve/serve.h"
#include "serve/conversation_files.h"
#include "serve/costs.h"
#include "serve/metrics.h"
#include "serve/running.h"
#include "serve/task.h"
#include "serve/workers.h"

namespace pith::serve {

struct SchedulerOptions {
  size_t parallel = 16;  ///< answers at once
  size_t queue = 256;    ///< requests that wait
  double queue_seconds = 60;
  size_t memory = 0;  ///< bytes of all caches and scratch: the engine's limit from then on
  /// Of the clock for reading prompts while answers are being made; in (0, 1].
  double prefill_share = 0.5;
  size_t snapshot_bytes = 0, largest_snapshot = 0;  ///< of the prefix tree; 0: none is kept
  size_t idle_sessions = 1024;                      ///< named ones that memory holds at most
  std::shared_ptr<ConversationFiles> files;         ///< for idle ones; null: memory alone
};

/// A named conversation between two requests: in memory, in a file, or in both. The file may be of
/// an earlier turn.
struct IdleSession {
  std::string id, tenant, policy;
  std::shared_ptr<const Session> session;  ///< null: in its file alone
  int64_t used = 0;                        ///< unix seconds
  std::optional<ConversationFile> file = {};
  uint64_t writing = 0;  ///< the job that writes the session; 0: none
  uint64_t since = 0;    ///< later jobs alone are of this conversation

  bool held() const { return session || file; }
  /// True if all that is in memory is in the file too.
  bool saved() const;
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
  void drain();
  bool draining() const { return draining_; }
  /// Requests that wait or run.
  size_t busy() const { return busy_; }
  /// Runs `f` on the scheduler's thread, between two steps, and waits for it. Throws what it
  /// throws.
  void call(const std::function<void()>& f);
  Gauges gauges();
  /// Whether a request of the conversation's waits or runs. Any thread.
  bool has_request(const std::string& conversation, const std::string& tenant);
  /// Writes idle conversations to their files. How many are there, and how many are in memory
  /// alone, with the reason.
  Server::Parked park();

  // On the scheduler's thread alone, inside call():
  std::list<IdleSession>& idle() { return idle_; }
  IdleSession* find_idle(const std::string& id, const std::string& tenant);
  /// Keeps a session under its name, where its conversation's next request finds it.
  void hold(IdleSession session);
  /// Drops what is a conversation's own: in memory, on disk, in the prefix tree.
  void forget(const std::string& id, const std::string& tenant);
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
    /// Empty sessions, one per choice, with room for all that these come to.
    std::vector<Session> rooms = {};
    /// Its conversation's file, if it continues from one. The first room is the file's meanwhile.
    enum class Fetch : uint8_t { kNot, kReading, kRead, kFailed } fetch = Fetch::kNot;
    std::shared_ptr<Session> fetched = {};
    std::string fetch_failure = {};
    bool tried = false;   // to make room
    bool looked = false;  // for its conversation at servers that leave
    int tries = 0;        // to begin

    bool is_fetched() const { return fetch == Fetch::kReading || fetch == Fetch::kRead; }
  };
  enum class Room : uint8_t { kThere, kSoon, kNone };
  /// The state from which a task's conversation continues.
  struct Own {
    IdleSession* idle = nullptr;  // null: the tree has as much
    size_t tokens = 0;
    bool on_disk = false;
  };

  void run();
  void take_arrivals();
  void drop_gone();
  void admit();
  Room make_room(Waiting& waiting);
  /// Bytes that would have to be freed for so many more.
  size_t lacking(size_t bytes) const;
  /// Makes the rooms of a task; false: there is no memory for them.
  bool set_aside(Waiting& waiting);
  /// Room for what a task's session may still come to. Throws kOutOfMemory.
  void reserve(Session& session, const Task& task) const;
  size_t step_bytes() const;
  /// Keeps what a prompt has read for those that begin alike.
  void keep(const Running& r);
  /// False: it waits for memory again.
  bool begin(Waiting& waiting);
  void start(Running& r, Waiting& waiting);
  void decode_pass();
  void read_chunk();
  /// True if a work that was refused for lack of memory is repeated. `others`: some run.
  bool comes_again(const Work& work, bool others);
  Running* next_to_read();
  void prompt_read(Running& r, std::span<const float> logits);
  void settle(Running& r);
  void fail(Running& r, const Refusal& refusal, const char* reason);
  void remove_ended();
  void end(Running& r);
  size_t retry_after() const;
  Refusal no_room() const;
  void post(std::function<void()> f);
  /// A task is over: its conversation takes another from now on. To be said before its client
  /// hears of it, who may ask at once.
  void left(const Task& task);

  // scheduler_disk.cc
  Own own_state(const Task& task);
  /// Looks for the conversation at servers that leave; false: its file may be on its way.
  bool take_over(Waiting& waiting);
  /// Begins to read the file from which a task continues; false: there is none.
  bool fetch(Waiting& waiting);
  void fetched(std::shared_ptr<Session> session, const std::string& failure, uint64_t number);
  void lose_file(const ConversationName& name);
  /// Takes a conversation out of memory. The bytes that will be free when its file is written; 0:
  /// they are free now.
  size_t leave_memory(IdleSession& idle);
  /// Drops conversations of which nothing is held.
  void drop_empty();
  void written(const ConversationName& name, uint64_t job, const ConversationFile& file,
               const std::string& failure);
  size_t disk_bytes() const;
  /// Removes files, those used least recently first, until `coming` more bytes fit in place of
  /// `keep`'s.
  void trim_disk(size_t coming, const IdleSession* keep);

  const std::shared_ptr<Engine> engine_;
  const SchedulerOptions options_;
  Metrics& metrics_;
  PrefixTree tree_;
  Costs costs_;

  const std::shared_ptr<ConversationFiles> files_;

  std::mutex lock_;  // of the next five
  std::condition_variable wake_;
  std::deque<Waiting> arrivals_;
  std::deque<std::function<void()>> commands_;
  bool stop_ = false;
  uint64_t numbers_ = 0;
  struct Requests {
    const Listener* of = nullptr;
    size_t count = 0;
  };
  std::map<std::pair<std::string, std::string>, Requests> named_;  // by tenant and conversation

  std::atomic<bool> draining_{false};
  std::atomic<size_t> busy_{0}, queued_{0};
  std::atomic<double> seconds_a_request_{1};

  // The scheduler's thread's own.
  std::vector<Waiting> waiting_;  // in the order of their turn
  std::list<std::unique_ptr<Running>> running_;
  std::list<IdleSession> idle_;  // least recently used first
  double owed_ = 0;              // seconds that passes of decode have before the next chunk
  bool waits_for_disk_ = false;  // who is first in the queue
  uint64_t jobs_ = 0;            // of writing, so far
  size_t writing_ = 0, fetching_ = 0;
  std::string disk_failure_;  // of the last write; "": it is well
  Gauges::Disk disk_;
  Workers disk_thread_{1};  // behind what its jobs use
  std::thread thread_;      // last: it uses all of the above
};

}  // namespace pith::serve
