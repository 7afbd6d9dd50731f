// Arrivals, admission and the order of turns; steps themselves are in scheduler_steps.cc.

#include "serve/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <future>
#include <utility>

namespace pith::serve {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::list<IdleSession> found_in(const std::shared_ptr<ConversationFiles>& files) {
  std::list<IdleSession> out;
  if (!files) return out;
  for (auto& [name, file] : files->find())
    out.push_back({name.id, name.tenant, name.policy, nullptr, name.used, file});
  return out;
}

std::string mebibytes(size_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576);
}

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
      metrics_(metrics),
      tree_(engine_,
            {.max_bytes = options.snapshot_bytes, .max_snapshot_bytes = options.largest_snapshot}),
      costs_(engine_),
      files_(options.files),
      idle_(found_in(files_)),
      thread_([this] { run(); }) {}

Scheduler::~Scheduler() {
  draining_ = true;
  {
    const std::lock_guard guard(lock_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Scheduler::drain() {
  if (!draining_.exchange(true) && files_) files_->leave();
}

size_t Scheduler::retry_after() const {
  const double seconds = static_cast<double>(queued_) * seconds_a_request_ /
                         static_cast<double>(std::max<size_t>(options_.parallel, 1));
  return static_cast<size_t>(std::clamp(seconds, 1.0, 120.0));
}

void Scheduler::submit(std::shared_ptr<Task> task) {
  const auto unavailable = [&](const char* code, const std::string& why) {
    Refusal refusal(503, code, why);
    refusal.retry_after = static_cast<int>(retry_after());
    metrics_.refused(code);
    return refusal;
  };
  if (draining_) throw unavailable("draining", "the server is about to end; try another one");
  const size_t tokens = task->prompt.size() + task->max_tokens;
  const size_t bytes = costs_.bytes(task->policy, task->session, tokens) * task->choices;
  const size_t scratch = engine_->ledger().total_bytes();
  if (bytes + scratch > options_.memory) {
    metrics_.refused("memory_budget_exceeded");
    throw Refusal(400, "memory_budget_exceeded",
                  fmt::format("{} tokens and an answer of {} may take {} under this policy; the "
                              "server has {} (--memory). Ask for a shorter answer (max_tokens), or "
                              "a policy that keeps less",
                              task->prompt.size(), task->max_tokens, mebibytes(bytes),
                              mebibytes(options_.memory - std::min(scratch, options_.memory))));
  }
  if (queued_ >= options_.queue)
    throw unavailable("queue_full", fmt::format("{} requests wait already", options_.queue));
  {
    const std::lock_guard guard(lock_);
    if (!task->conversation.empty()) {
      Requests& others = named_[{task->tenant, task->conversation}];
      const bool held = others.count > 0 && others.of != task->listener.get() && !others.of->gone();
      if (held && task->alone)
        throw Refusal(409, "session_busy",
                      fmt::format("the session '{}' has a request that is not answered yet; wait "
                                  "for it, or fork the session",
                                  task->conversation.substr(0, 130)));
      others = {task->listener.get(), others.count + 1};
    }
    ++queued_;
    ++busy_;
    arrivals_.push_back({std::move(task), bytes, numbers_++, Clock::now()});
  }
  wake_.notify_one();
}

void Scheduler::left(const Task& task) {
  if (task.conversation.empty()) return;
  const std::lock_guard guard(lock_);
  const auto named = named_.find({task.tenant, task.conversation});
  if (--named->second.count == 0) named_.erase(named);
}

bool Scheduler::has_request(const std::string& conversation, const std::string& tenant) {
  const std::lock_guard guard(lock_);
  return named_.contains({tenant, conversation});
}

void Scheduler::post(std::function<void()> f) {
  {
    const std::lock_guard guard(lock_);
    commands_.push_back(std::move(f));
  }
  wake_.notify_one();
}

void Scheduler::call(const std::function<void()>& f) {
  std::promise<void> done;
  {
    const std::lock_guard guard(lock_);
    if (stop_) throw Refusal(503, "draining", "the server is about to end");
    commands_.push_back([&] {
      try {
        f();
        done.set_value();
      } catch (...) {
        done.set_exception(std::current_exception());
      }
    });
  }
  wake_.notify_one();
  done.get_future().get();
}

void Scheduler::run() {
  if (files_) trim_disk(0, nullptr), drop_empty();
  for (;;) {
    std::deque<std::function<void()>> commands;
    {
      std::unique_lock guard(lock_);
      const auto ready = [&] {
        return stop_ || !commands_.empty() || !arrivals_.empty() || !running_.empty() ||
               (!waiting_.empty() && !waits_for_disk_);
      };
      // Who waits may leave, or wait too long.
      if (waits_for_disk_)
        wake_.wait_for(guard, std::chrono::milliseconds(50), ready);
      else
        wake_.wait(guard, ready);
      if (stop_ && commands_.empty()) break;
      std::swap(commands, commands_);
    }
    for (const auto& command : commands) command();
    take_arrivals();
    drop_gone();
    admit();
    decode_pass();
    read_chunk();
    remove_ended();
  }
  take_arrivals();
  const Refusal ending(503, "draining", "the server is ending");
  for (const auto& r : running_) fail(*r, ending, "abort");
  for (const Waiting& w : waiting_) w.task->listener->failed(ending);
}

void Scheduler::take_arrivals() {
  std::deque<Waiting> arrivals;
  {
    const std::lock_guard guard(lock_);
    std::swap(arrivals, arrivals_);
  }
  for (Waiting& w : arrivals) waiting_.push_back(std::move(w));
  std::stable_sort(waiting_.begin(), waiting_.end(), [](const Waiting& a, const Waiting& b) {
    return a.task->priority != b.task->priority ? a.task->priority < b.task->priority
                                                : a.number < b.number;
  });
}

void Scheduler::drop_gone() {
  const auto leaves = [&](const Waiting& w) {
    const bool gone = w.task->listener->gone();
    const bool late = seconds_since(w.since) > options_.queue_seconds;
    if (!gone && !late) return false;
    if (gone) {
      metrics_.cancelled("queue");
      left(*w.task);
    } else {
      Refusal refusal(503, "queue_timeout",
                      fmt::format("waited {:.0f} s for a turn", options_.queue_seconds));
      refusal.retry_after = static_cast<int>(retry_after());
      metrics_.refused("queue_timeout");
      left(*w.task);
      w.task->listener->failed(refusal);
    }
    --queued_;
    --busy_;
    return true;
  };
  std::erase_if(waiting_, leaves);
  for (const auto& r : running_) {
    if (r->over || !r->task->listener->gone()) continue;
    metrics_.cancelled(r->reading() ? "prompt" : "answer");
    // The chunks that are read need not be read again if the client asks again.
    if (r->reading() && r->task->reuse && r->reader->at() > r->reuse.tokens &&
        r->reuse.kind != Reuse::Kind::kAnswer)
      keep(*r);
    fail(*r, Refusal(500, "cancelled", "the client has gone"), "abort");
  }
  remove_ended();
}

Refusal Scheduler::no_room() const {
  if (disk_failure_.empty())
    return {503, "out_of_memory", "memory that is not the server's to free is in the way"};
  return {507, "disk_full",
          fmt::format("memory is full of idle conversations, and none can be written to a file: {}",
                      disk_failure_)};
}

void Scheduler::admit() {
  waits_for_disk_ = false;
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    size_t answers = 0;
    for (const auto& r : running_) answers += r->task->choices;
    // One request may ask for more answers than run at once, if it runs alone.
    if (!running_.empty() && answers + first.task->choices > options_.parallel) return;
    if (!take_over(first)) {
      waits_for_disk_ = true;
      return;
    }
    if (first.fetch == Waiting::Fetch::kNot || first.fetch == Waiting::Fetch::kFailed) {
      // Each tries the disk once, however it went for others.
      if (!std::exchange(first.tried, true)) disk_failure_.clear();
      const Room room = make_room(first);
      waits_for_disk_ = room == Room::kSoon || (room == Room::kNone && fetching_ > 0) ||
                        (room == Room::kThere && fetch(first));
      if (waits_for_disk_ || (room == Room::kNone && !running_.empty())) return;
      if (room == Room::kNone) {
        --queued_;  // before its client hears of it, which may ask for more
        left(*first.task);
        first.task->listener->failed(no_room());
        --busy_;
      } else if (!begin(first)) {
        continue;
      }
    } else if (first.fetch == Waiting::Fetch::kReading) {
      waits_for_disk_ = true;
      return;
    } else if (!begin(first)) {
      continue;
    }
    waiting_.erase(waiting_.begin());
  }
}

bool Scheduler::begin(Waiting& waiting) {
  auto r = std::make_unique<Running>();
  r->task = waiting.task;
  r->number = waiting.number;
  r->since = waiting.since;
  r->admitted = Clock::now();
  r->reserved = waiting.bytes;
  try {
    start(*r, waiting);
    r->reader.emplace(*r->session, r->prompt());
  } catch (const Error& error) {
    // A room was given back for the session, and somebody else was quicker.
    if (error.code() == ErrorCode::kOutOfMemory && waiting.tries++ < 3) return false;
    --queued_;  // before its client hears of it, which may ask for more
    left(*r->task);
    r->task->listener->failed(refusal_of(error));
    --busy_;
    return true;
  }
  --queued_;
  r->task->listener->begun(r->task->first_choice, r->task->choices);
  running_.push_back(std::move(r));
  return true;
}

/// From its conversation's state, from a prompt that begins alike, or from nothing.
void Scheduler::start(Running& r, Waiting& waiting) {
  const Task& task = *r.task;
  const Own own = waiting.fetched ? Own{} : own_state(task);
  // Given back for the session, which asks for its own.
  if (!waiting.fetched && !waiting.rooms.empty()) waiting.rooms.erase(waiting.rooms.begin());
  if (waiting.fetched)
    r.session.emplace(std::move(*waiting.fetched));
  else if (own.idle && !own.on_disk)
    r.session.emplace(own.idle->session->fork(Copy::kNow));
  if (r.session) {
    r.reuse = {Reuse::Kind::kAnswer, r.session->tokens(),
               fmt::format("{} of {} tokens are of its conversation", r.session->tokens(),
                           task.prompt.size())};
  } else if (task.reuse) {
    r.session = tree_.begin(task.session, r.prompt(), &r.reuse);
  } else {
    r.session.emplace(engine_, task.session);
  }
  if (!waiting.fetched) reserve(*r.session, task);
  r.rooms = std::move(waiting.rooms);
  if (!waiting.fetch_failure.empty())
    r.reuse.reason = fmt::format("its conversation's file is of no use: {}; {}",
                                 waiting.fetch_failure, r.reuse.reason);
}

bool Scheduler::is_running(const std::string& conversation, const std::string& tenant) const {
  return std::any_of(running_.begin(), running_.end(), [&](const auto& r) {
    return r->task->conversation == conversation && r->task->tenant == tenant;
  });
}

Gauges Scheduler::gauges() {
  Gauges out;
  call([&] {
    out.running = running_.size();
    out.waiting = queued_;
    for (const IdleSession& idle : idle_) ++(idle.session ? out.idle : out.on_disk);
    out.disk = disk_;
    out.disk.bytes = disk_bytes();
    out.disk.budget = files_ ? files_->quota() : 0;
    out.budget = options_.memory;
    for (const auto& r : running_) out.reserved += r->reserved;
    for (const Waiting& w : waiting_)
      if (w.is_fetched()) out.reserved += w.bytes;
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
    for (const auto& r : running_) {
      const Ledger ledger = r->session->ledger();
      out.rows_kept += ledger.rows_kept;
      out.rows_seen += ledger.rows_seen;
    }
  });
  return out;
}

}  // namespace pith::serve
