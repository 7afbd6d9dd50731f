// Arrivals, admission and the order of turns; steps themselves are in scheduler_steps.cc.

#include "serve/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <future>

namespace pith::serve {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string mebibytes(size_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576);
}

}  // namespace

Scheduler::Scheduler(std::shared_ptr<Engine> engine, const SchedulerOptions& options,
                     Metrics& metrics)
    : engine_(std::move(engine)),
      options_(options),
      metrics_(metrics),
      tree_(engine_,
            {.max_bytes = options.snapshot_bytes, .max_snapshot_bytes = options.largest_snapshot}),
      books_(options.memory),
      costs_(engine_->model()->config(), engine_->options().device),
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
  size_t bytes = 0;
  {
    const std::lock_guard guard(costs_lock_);
    bytes = costs_.bytes(task->policy, task->session, tokens) * task->choices;
  }
  const size_t scratch = engine_->ledger().total_bytes();
  if (bytes + scratch > books_.budget()) {
    metrics_.refused("memory_budget_exceeded");
    throw Refusal(400, "memory_budget_exceeded",
                  fmt::format("{} tokens and an answer of {} may take {} under this policy; the "
                              "server has {} (--memory). Ask for a shorter answer (max_tokens), or "
                              "a policy that keeps less",
                              task->prompt.size(), task->max_tokens, mebibytes(bytes),
                              mebibytes(books_.budget() - std::min(scratch, books_.budget()))));
  }
  if (queued_ >= options_.queue)
    throw unavailable("queue_full", fmt::format("{} requests wait already", options_.queue));
  ++queued_;
  ++busy_;
  {
    const std::lock_guard guard(lock_);
    arrivals_.push_back({std::move(task), bytes, numbers_++, Clock::now()});
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
  for (;;) {
    std::deque<std::function<void()>> commands;
    {
      std::unique_lock guard(lock_);
      wake_.wait(guard, [&] {
        return stop_ || !commands_.empty() || !arrivals_.empty() || !waiting_.empty() ||
               !running_.empty();
      });
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
    } else {
      Refusal refusal(503, "queue_timeout",
                      fmt::format("waited {:.0f} s for a turn", options_.queue_seconds));
      refusal.retry_after = static_cast<int>(retry_after());
      metrics_.refused("queue_timeout");
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
      tree_.keep(*r->session, r->prompt());
    fail(*r, Refusal(500, "cancelled", "the client has gone"), "abort");
  }
  remove_ended();
}

bool Scheduler::make_room(size_t bytes) {
  for (;;) {
    size_t live = 0;
    for (const auto& r : running_) {
      live += r->session->ledger().total_bytes();
      for (const Session& fork : r->forks) live += fork.ledger().total_bytes();
    }
    const size_t lacking = books_.lacking(bytes, engine_->bytes_in_use(), live);
    if (lacking == 0) return true;
    if (tree_.shrink(lacking) > 0) continue;
    if (idle_.empty()) return false;
    idle_.pop_front();
  }
}

void Scheduler::admit() {
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    size_t answers = 0;
    for (const auto& r : running_) answers += r->task->choices;
    // One request may ask for more answers than run at once, if it runs alone.
    if (!running_.empty() && answers + first.task->choices > options_.parallel) return;
    if (!make_room(first.bytes)) {
      if (!running_.empty()) return;
      first.task->listener->failed(
          Refusal(503, "out_of_memory", "memory that is not the server's to free is in the way"));
      --busy_;
    } else {
      begin(first);
    }
    waiting_.erase(waiting_.begin());
    --queued_;
  }
}

void Scheduler::begin(Waiting& waiting) {
  auto r = std::make_unique<Running>();
  r->task = waiting.task;
  r->number = waiting.number;
  r->since = waiting.since;
  r->admitted = Clock::now();
  try {
    const Task& task = *r->task;
    if (task.reuse)
      r->session = tree_.begin(task.session, r->prompt(), &r->reuse);
    else
      r->session.emplace(engine_, task.session);
    r->reader.emplace(*r->session, r->prompt());
  } catch (const Error& error) {
    waiting.task->listener->failed(refusal_of(error));
    --busy_;
    return;
  }
  r->reserved = waiting.bytes;
  books_.reserve(r->reserved);
  r->task->listener->begun(r->task->first_choice, r->task->choices);
  running_.push_back(std::move(r));
}

void Scheduler::hold(IdleSession session) {
  std::erase_if(idle_, [&](const IdleSession& other) {
    return other.id == session.id && other.tenant == session.tenant;
  });
  idle_.push_back(std::move(session));
  while (idle_.size() > options_.idle_sessions) idle_.pop_front();
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
    out.idle = idle_.size();
    out.budget = books_.budget();
    out.reserved = books_.reserved();
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
