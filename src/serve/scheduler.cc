#include "serve/scheduler.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace pith::serve {
namespace {

/// With its own buffers made, so that all the rest of the memory is the sessions' from the start.
std::shared_ptr<Engine> limited(std::shared_ptr<Engine> engine, size_t memory) {
  engine->set_memory_limit(memory);
  Session first(engine, {});
  first.reserve(std::min(engine->options().chunk, first.context()));
  return engine;
}

}  // namespace

Scheduler::Scheduler(std::shared_ptr<Engine> engine, const SchedulerOptions& options,
                     Metrics& metrics)
    : engine_(limited(std::move(engine), options.memory)),
      options_(options),
      tree_(engine_,
            {.max_bytes = options.snapshot_bytes, .max_snapshot_bytes = options.largest_snapshot}),
      requests_(engine_, options, metrics),
      spill_(options.files, mailbox_, metrics),
      idle_(options.files, options.idle_sessions, spill_),
      continuations_(options.files, tree_, idle_, spill_),
      memory_(engine_, options.memory, tree_, idle_, continuations_),
      batch_(requests_, memory_, idle_, metrics),
      passes_(engine_, options.prefill_share, batch_, memory_, metrics),
      admission_(engine_, options,
                 {requests_, tree_, idle_, continuations_, memory_, batch_, metrics}),
      thread_([this] { run(); }) {}

Scheduler::~Scheduler() {
  requests_.drain();
  mailbox_.stop();
  thread_.join();
}

void Scheduler::drain() {
  if (requests_.drain() && options_.files) options_.files->leave();
}

void Scheduler::submit(std::shared_ptr<Task> task) {
  const Requests::Accepted accepted = requests_.accept(*task);
  mailbox_.post([this, task = std::move(task), accepted, since = Admission::Clock::now()] {
    admission_.add(task, accepted, since);
  });
}

void Scheduler::run() {
  idle_.trim_disk();
  for (;;) {
    const bool on_disk = admission_.waits_for_disk();
    // Who waits for the disk may leave, or wait too long.
    const auto functions =
        mailbox_.take(!batch_.empty() || (!admission_.empty() && !on_disk),
                      on_disk ? std::optional(std::chrono::milliseconds(50)) : std::nullopt);
    if (!functions) break;
    for (const auto& function : *functions) function();
    admission_.drop_gone();
    batch_.drop_gone();
    admission_.admit();
    passes_.decode();
    passes_.read_chunk();
    batch_.remove_ended();
  }
  const Refusal ending(503, "draining", "the server is ending");
  for (const auto& r : batch_.running()) batch_.fail(*r, ending, "abort");
  admission_.fail_all(ending);
}

void Scheduler::forget(const std::string& id, const std::string& tenant) {
  tree_.forget(tenant, id);
  idle_.forget(id, tenant);
}

Gauges Scheduler::gauges() {
  Gauges out;
  call([&] {
    admission_.report(out);
    batch_.report(out);
    idle_.report(out);
    out.budget = options_.memory;
    out.in_use = engine_->bytes_in_use();
    out.scratch = engine_->ledger().total_bytes();
    out.weights = engine_->model()->weight_bytes();
    const PrefixTree::Statistics tree = tree_.statistics();
    out.snapshots = tree.snapshots;
    out.snapshot_bytes = tree.bytes;
    out.snapshot_hits = tree.prompt_hits + tree.answer_hits;
    out.snapshot_misses = tree.misses;
    out.snapshot_evictions = tree.evicted;
    out.tokens_reused = tree.tokens_reused;
  });
  return out;
}

Session Scheduler::room(const Task& task) {
  using Room = MemoryBudget::Room;
  std::vector<Session> rooms;
  std::optional<MemoryBudget::Lack> last;
  call([&] { idle_.try_disk_again(); });
  for (Room room = Room::kSoon; room == Room::kSoon;) {
    call([&] {
      room = memory_.make_room(rooms, task, !batch_.empty(), last);
      if (room == Room::kNone) throw memory_.no_room();
    });
    if (room == Room::kSoon) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  // Without one it is refused for other reasons than memory.
  return rooms.empty() ? Session(engine_, task.session) : std::move(rooms.front());
}

Server::Parked Scheduler::park() {
  Server::Parked out;
  if (!options_.files) return out;
  call([&] { idle_.park(); });
  for (bool busy = true; busy;) {
    call([&] { busy = spill_.writing() > 0; });
    if (busy) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  call([&] { out = idle_.parked(); });
  return out;
}

}  // namespace pith::serve
