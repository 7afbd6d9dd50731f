// Steps: a token for each answer, a chunk of one prompt, and what ends.

#include <algorithm>
#include <utility>

#include "serve/scheduler.h"

namespace pith::serve {
namespace {

// A prompt of one chunk goes before longer ones, but each of these waits for so many at most.
constexpr int kMostPassed = 4;

double seconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

void Scheduler::decode_pass() {
  struct Of {
    Running* running;
    size_t choice;
  };
  std::vector<Of> of;
  std::vector<Work> works;
  for (const auto& r : running_) {
    if (r->over) continue;
    for (size_t i = 0; i < r->answers.size(); ++i) {
      Answer& answer = *r->answers[i];
      if (answer.ended()) continue;
      Work work;
      work.session = &r->session_of(i);
      work.tokens = {&answer.pending(), 1};
      work.sampler = &answer.sampler();
      if (r->task->logprobs >= 0) {
        const size_t width = r->logits.size() / r->answers.size();
        work.logits = r->logits.data() + i * width;
      }
      works.push_back(work);
      of.push_back({r.get(), i});
    }
  }
  if (works.empty()) return;
  const auto start = Clock::now();
  engine_->step(works);
  const auto now = Clock::now();
  metrics_.step(works.size(), seconds(now - start));
  owed_ -= seconds(now - start);
  const bool others = std::ranges::any_of(works, [](const Work& w) { return w.appended; });
  for (size_t w = 0; w < works.size(); ++w) {
    Running& r = *of[w].running;
    if (r.over || comes_again(works[w], others)) continue;
    if (works[w].failure) {
      fail(r, refusal_of(*works[w].failure), "error");
      continue;
    }
    if (of[w].choice == 0) {
      metrics_.token_gap(seconds(now - r.last_token));
      r.last_token = now;
    }
    const size_t width = r.logits.size() / r.answers.size();
    Answer& answer = *r.answers[of[w].choice];
    const Session& session = r.session_of(of[w].choice);
    answer.take(works[w].next, std::span(r.logits).subspan(of[w].choice * width, width),
                session.context() - session.tokens());
    settle(r);
  }
}

// Such a work has changed nothing; memory comes back as others end and snapshots go.
bool Scheduler::comes_again(const Work& work, bool others) {
  if (!work.failure || work.failure->code() != ErrorCode::kOutOfMemory || work.appended)
    return false;
  return tree_.shrink(step_bytes()) > 0 || others;
}

Running* Scheduler::next_to_read() {
  Running* first = nullptr;
  const auto before = [](const Running& a, const Running& b) {
    return a.task->priority != b.task->priority ? a.task->priority < b.task->priority
                                                : a.number < b.number;
  };
  for (const auto& r : running_)
    if (r->reading() && (first == nullptr || before(*r, *first))) first = r.get();
  const size_t chunk = engine_->options().chunk;
  if (first == nullptr || first->left() <= chunk || first->passed >= kMostPassed) return first;
  Running* quick = nullptr;
  for (const auto& r : running_) {
    if (!r->reading() || r->left() > chunk || r->task->priority != first->task->priority) continue;
    if (quick == nullptr || before(*r, *quick)) quick = r.get();
  }
  if (quick == nullptr) return first;
  ++first->passed;
  return quick;
}

void Scheduler::read_chunk() {
  const bool writing = std::any_of(running_.begin(), running_.end(),
                                   [](const auto& r) { return !r->over && !r->reading(); });
  if (!writing) owed_ = 0;
  if (owed_ > 0) return;
  Running* r = next_to_read();
  if (r == nullptr) return;
  const auto start = Clock::now();
  Work work = r->reader->next(*r->session);
  work.slice = static_cast<size_t>(engine_->model()->config().layers);
  const bool last = work.append == Append::kPromptEnds;
  std::vector<float> logits;
  if (last && r->task->max_tokens > 0) {
    logits.resize(static_cast<size_t>(engine_->model()->config().vocab));
    work.logits = logits.data();
  }
  engine_->step({&work, 1});
  const double took = seconds(Clock::now() - start);
  if (comes_again(work, writing)) return;
  metrics_.prompt_chunk(work.goes_on ? 0 : work.tokens.size(), took);
  owed_ = took * (1 - options_.prefill_share) / options_.prefill_share;
  r->prompt_seconds += took;
  if (work.failure) return fail(*r, refusal_of(*work.failure), "error");
  if (work.goes_on) return;
  const bool fork_point = r->reader->took(work);
  r->task->listener->read(r->reader->at(), r->reuse.tokens, r->task->prompt.size());
  if (fork_point && r->task->reuse && r->reuse.kind != Reuse::Kind::kAnswer) keep(*r);
  if (last) prompt_read(*r, logits);
}

void Scheduler::prompt_read(Running& r, std::span<const float> logits) {
  const Task& task = *r.task;
  try {
    r.read = r.last_token = Clock::now();
    while (!r.rooms.empty()) {
      r.rooms.pop_back();  // the fork's own takes its place
      r.forks.push_back(r.session->fork());
      reserve(r.forks.back(), task);
    }
    for (size_t i = 0; i < task.choices; ++i)
      r.answers.push_back(std::make_unique<Answer>(task, *engine_->model(), i));
    if (task.logprobs >= 0) r.logits.resize(task.choices * logits.size());
    for (const auto& answer : r.answers) {
      if (task.max_tokens == 0) {
        answer->end(StopReason::kMaxTokens);
        continue;
      }
      const int32_t token = answer->sampler().sample(logits, task.prompt);
      answer->take(token, logits, r.session->context() - r.session->tokens());
    }
    settle(r);
  } catch (const Error& error) {
    fail(r, refusal_of(error), "error");
  }
}

/// Ends a task whose answers have all ended.
void Scheduler::settle(Running& r) {
  if (r.over ||
      !std::all_of(r.answers.begin(), r.answers.end(), [](const auto& a) { return a->ended(); }))
    return;
  end(r);
}

void Scheduler::end(Running& r) {
  r.over = true;
  const auto now = Clock::now();
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
  seconds_a_request_ = 0.8 * seconds_a_request_ + 0.2 * seconds(now - r.admitted);

  const Task& task = *r.task;
  if (!task.conversation.empty() && task.choices == 1) {
    // For the conversation's next turn; snapshots share their rows with it.
    try {
      r.session->reserve(0);
      if (task.reuse) keep(r);
      hold({task.conversation, task.tenant, task.policy,
            std::make_shared<const Session>(std::move(*r.session))});
      r.session.reset();
    } catch (const Error&) {  // it is a loss of time alone
    }
  }
  left(task);
  r.task->listener->ended(totals);
}

void Scheduler::fail(Running& r, const Refusal& refusal, const char* reason) {
  if (r.over) return;
  r.over = true;
  Metrics::Finished done;
  done.reason = reason;
  metrics_.finished(done);
  left(*r.task);
  r.task->listener->failed(refusal);
}

void Scheduler::remove_ended() {
  for (auto r = running_.begin(); r != running_.end();) {
    if (!(*r)->over) {
      ++r;
      continue;
    }
    r = running_.erase(r);
    --busy_;
  }
}

}  // namespace pith::serve
