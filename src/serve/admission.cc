#include "serve/admission.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace pith::serve {

Admission::Admission(std::shared_ptr<Engine> engine, const SchedulerOptions& options,
                     const Parts& parts)
    : engine_(std::move(engine)),
      parallel_(options.parallel),
      queue_seconds_(options.queue_seconds),
      parts_(parts) {}

void Admission::add(std::shared_ptr<Task> task, const Requests::Accepted& accepted,
                    Clock::time_point since) {
  waiting_.push_back({std::move(task), accepted.bytes, accepted.number, since});
  std::stable_sort(waiting_.begin(), waiting_.end(), [](const Waiting& a, const Waiting& b) {
    return a.task->priority != b.task->priority ? a.task->priority < b.task->priority
                                                : a.number < b.number;
  });
}

void Admission::drop_gone() {
  Requests& requests = parts_.requests;
  std::erase_if(waiting_, [&](const Waiting& w) {
    const bool gone = w.task->listener->gone();
    const bool late =
        std::chrono::duration<double>(Clock::now() - w.since).count() > queue_seconds_;
    if (!gone && !late) return false;
    if (gone) {
      parts_.metrics.cancelled("queue");
      requests.leaves_conversation(*w.task);
    } else {
      Refusal refusal(503, "queue_timeout",
                      fmt::format("waited {:.0f} s for a turn", queue_seconds_));
      refusal.retry_after = requests.retry_after();
      parts_.metrics.refused("queue_timeout");
      requests.leaves_conversation(*w.task);
      w.task->listener->failed(refusal);
    }
    requests.leaves_queue();
    requests.ended();
    return true;
  });
}

void Admission::admit() {
  waits_for_disk_ = false;
  while (!waiting_.empty()) {
    const Next next = try_first();
    waits_for_disk_ = next == Next::kWaitsForDisk;
    if (waits_for_disk_ || next == Next::kWaits) return;
    if (next == Next::kLeaves) waiting_.erase(waiting_.begin());
  }
}

Admission::Next Admission::try_first() {
  using enum Waiting::Fetch;
  Waiting& first = waiting_.front();
  // One request may ask for more answers than run at once, if it runs alone.
  const Batch& batch = parts_.batch;
  if (!batch.empty() && batch.answers() + first.task->choices > parallel_) return Next::kWaits;
  if (!first.looked && !parts_.continuations.take_over(*first.task, first.since))
    return Next::kWaitsForDisk;
  first.looked = true;
  if (first.fetch == kReading) return Next::kWaitsForDisk;
  return first.fetch == kRead ? begin(first) : make_room(first);
}

Admission::Next Admission::make_room(Waiting& waiting) {
  using Room = MemoryBudget::Room;
  // Each tries the disk once, however it went for others.
  if (!std::exchange(waiting.tried, true)) parts_.idle.try_disk_again();
  const bool runs = !parts_.batch.empty();
  const Room room = parts_.memory.make_room(waiting.rooms, *waiting.task, runs, waiting.lack);
  if (room == Room::kSoon || (room == Room::kThere && fetch(waiting))) return Next::kWaitsForDisk;
  if (room == Room::kThere) return begin(waiting);
  if (parts_.continuations.fetching() > 0) return Next::kWaitsForDisk;
  if (runs) return Next::kWaits;
  refuse(*waiting.task, parts_.memory.no_room());
  return Next::kLeaves;
}

void Admission::refuse(const Task& task, const Refusal& refusal) {
  parts_.requests.leaves_queue();
  parts_.requests.leaves_conversation(task);
  task.listener->failed(refusal);
  parts_.requests.ended();
}

bool Admission::fetch(Waiting& waiting) {
  if (waiting.fetch == Waiting::Fetch::kFailed || waiting.rooms.empty()) return false;
  const OwnState own = parts_.continuations.own_state(*waiting.task);
  if (!own.on_disk) return false;
  waiting.fetch = Waiting::Fetch::kReading;
  Session room = std::move(waiting.rooms.front());
  waiting.rooms.erase(waiting.rooms.begin());
  parts_.continuations.fetch(
      own, waiting.task, std::move(room),
      [this, number = waiting.number](std::shared_ptr<Session> session, const std::string& why) {
        fetched(number, std::move(session), why);
      });
  return true;
}

void Admission::fetched(uint64_t number, std::shared_ptr<Session> session,
                        const std::string& failure) {
  const auto waits =
      std::ranges::find_if(waiting_, [&](const Waiting& w) { return w.number == number; });
  if (waits == waiting_.end()) return;  // its client has gone
  waits->fetch = session ? Waiting::Fetch::kRead : Waiting::Fetch::kFailed;
  waits->fetch_failure = failure;
  waits->fetched = std::move(session);
}

Admission::Next Admission::begin(Waiting& waiting) {
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
    if (error.code() == ErrorCode::kOutOfMemory && waiting.tries++ < 3) return Next::kAgain;
    refuse(*r->task, refusal_of(error));
    return Next::kLeaves;
  }
  parts_.requests.leaves_queue();
  r->task->listener->begun(r->task->first_choice, r->task->choices);
  parts_.batch.add(std::move(r));
  return Next::kLeaves;
}

/// From its conversation's state, from a prompt that begins alike, or from nothing.
void Admission::start(Running& r, Waiting& waiting) {
  const Task& task = *r.task;
  const OwnState own = waiting.fetched ? OwnState{} : parts_.continuations.own_state(task);
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
    r.session = parts_.tree.begin(task.session, r.prompt(), &r.reuse);
  } else {
    r.session.emplace(engine_, task.session);
  }
  if (!waiting.fetched) MemoryBudget::reserve(*r.session, task);
  r.rooms = std::move(waiting.rooms);
  if (!waiting.fetch_failure.empty())
    r.reuse.reason = fmt::format("its conversation's file is of no use: {}; {}",
                                 waiting.fetch_failure, r.reuse.reason);
}

void Admission::fail_all(const Refusal& refusal) {
  for (const Waiting& w : waiting_) w.task->listener->failed(refusal);
}

void Admission::report(Gauges& gauges) const {
  gauges.waiting = parts_.requests.queued();
  for (const Waiting& w : waiting_)
    if (w.fetch == Waiting::Fetch::kReading || w.fetch == Waiting::Fetch::kRead)
      gauges.reserved += w.bytes;
}

}  // namespace pith::serve
