#include "serve/batch.h"

#include <algorithm>
#include <utility>

namespace pith::serve {
namespace {

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

Totals totals_of(const Running& r, Running::Clock::time_point now) {
  Totals totals;
  totals.prompt_tokens = r.task->prompt.size();
  totals.cached_tokens = r.reuse.tokens;
  for (const auto& answer : r.answers) totals.drawn_tokens += answer->drawn();
  totals.queue_seconds = seconds(r.admitted - r.since);
  totals.prompt_seconds = r.prompt_seconds;
  totals.decode_seconds = seconds(now - r.read);
  totals.reuse_kind = r.reuse.kind == Reuse::Kind::kNone     ? "none"
                      : r.reuse.kind == Reuse::Kind::kPrompt ? "prompt"
                                                             : "answer";
  totals.reuse_reason = r.reuse.reason;
  totals.reason = r.answers[0]->reason();
  const Ledger ledger = r.session->ledger();
  totals.bytes = ledger.total_bytes();
  totals.bits = ledger.effective_bits();
  totals.reserved_bytes = r.reserved;
  return totals;
}

}  // namespace

size_t Batch::answers() const {
  size_t answers = 0;
  for (const auto& r : running_) answers += r->task->choices;
  return answers;
}

bool Batch::has(const std::string& conversation, const std::string& tenant) const {
  return std::any_of(running_.begin(), running_.end(), [&](const auto& r) {
    return r->task->conversation == conversation && r->task->tenant == tenant;
  });
}

void Batch::settle(Running& r) {
  if (r.over ||
      !std::all_of(r.answers.begin(), r.answers.end(), [](const auto& a) { return a->ended(); }))
    return;
  end(r);
}

void Batch::end(Running& r) {
  r.over = true;
  const auto now = Running::Clock::now();
  const Totals totals = totals_of(r, now);
  Metrics::Finished done;
  done.reason = finish_reason(totals.reason);
  done.prompt_tokens = totals.prompt_tokens;
  done.cached_tokens = totals.cached_tokens;
  done.drawn_tokens = totals.drawn_tokens;
  done.queue_seconds = totals.queue_seconds;
  done.first_token_seconds = seconds(r.read - r.since);
  done.prompt_seconds = totals.prompt_seconds;
  done.decode_seconds = totals.decode_seconds;
  done.seconds = seconds(now - r.since);
  metrics_.finished(done);
  requests_.took(seconds(now - r.admitted));
  hold(r);
  requests_.leaves_conversation(*r.task);
  r.task->listener->ended(totals);
}

void Batch::hold(Running& r) {
  const Task& task = *r.task;
  if (task.conversation.empty() || task.choices != 1) return;
  try {
    r.session->reserve(0);
    if (task.reuse) memory_.keep(*r.session, r.prompt());  // it shares its rows
    idle_.hold({task.conversation, task.tenant, task.policy,
                std::make_shared<const Session>(std::move(*r.session))},
               requests_.draining());
    r.session.reset();
  } catch (const Error&) {  // it is a loss of time alone
  }
}

void Batch::fail(Running& r, const Refusal& refusal, const char* reason) {
  if (r.over) return;
  r.over = true;
  Metrics::Finished done;
  done.reason = reason;
  metrics_.finished(done);
  requests_.leaves_conversation(*r.task);
  r.task->listener->failed(refusal);
}

void Batch::drop_gone() {
  for (const auto& r : running_) {
    if (r->over || !r->task->listener->gone()) continue;
    metrics_.cancelled(r->reading() ? "prompt" : "answer");
    // The chunks that are read need not be read again if the client asks again.
    if (r->reading() && r->task->reuse && r->reader->at() > r->reuse.tokens &&
        r->reuse.kind != Reuse::Kind::kAnswer)
      memory_.keep(*r->session, r->prompt());
    fail(*r, Refusal(500, "cancelled", "the client has gone"), "abort");
  }
  remove_ended();
}

void Batch::remove_ended() {
  for (auto r = running_.begin(); r != running_.end();) {
    if (!(*r)->over) {
      ++r;
      continue;
    }
    r = running_.erase(r);
    requests_.ended();
  }
}

void Batch::report(Gauges& gauges) const {
  gauges.running = running_.size();
  for (const auto& r : running_) {
    gauges.reserved += r->reserved;
    const Ledger ledger = r->session->ledger();
    gauges.rows_kept += ledger.rows_kept;
    gauges.rows_seen += ledger.rows_seen;
  }
}

}  // namespace pith::serve
