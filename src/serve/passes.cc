#include "serve/passes.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace pith::serve {
namespace {

using Clock = Running::Clock;

// A prompt of one chunk goes before longer ones, but each of these waits for so many at most.
constexpr int kMostPassed = 4;

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }

bool before(const Running& a, const Running& b) {
  return a.task->priority != b.task->priority ? a.task->priority < b.task->priority
                                              : a.number < b.number;
}

}  // namespace

Work Passes::work_of(const Choice& choice) {
  Running& r = *choice.running;
  Answer& answer = *r.answers[choice.index];
  Work work;
  work.session = &r.session_of(choice.index);
  work.tokens = {&answer.pending(), 1};
  work.sampler = &answer.sampler();
  if (r.task->logprobs >= 0) work.logits = r.logits_of(choice.index).data();
  return work;
}

void Passes::decode() {
  std::vector<Choice> choices;
  std::vector<Work> works;
  for (const auto& r : batch_.running()) {
    if (r->over) continue;
    for (size_t i = 0; i < r->answers.size(); ++i) {
      if (r->answers[i]->ended()) continue;
      choices.push_back({r.get(), i});
      works.push_back(work_of(choices.back()));
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
    Running& r = *choices[w].running;
    if (r.over || memory_.comes_again(works[w], others)) continue;
    if (works[w].failure) {
      batch_.fail(r, refusal_of(*works[w].failure), "error");
      continue;
    }
    if (choices[w].index == 0) {
      metrics_.token_gap(seconds(now - r.last_token));
      r.last_token = now;
    }
    take(choices[w], works[w]);
  }
}

void Passes::take(const Choice& choice, const Work& work) {
  Running& r = *choice.running;
  const Session& session = r.session_of(choice.index);
  r.answers[choice.index]->take(work.next, r.logits_of(choice.index),
                                session.context() - session.tokens());
  batch_.settle(r);
}

Running* Passes::next_to_read() const {
  Running* first = nullptr;
  for (const auto& r : batch_.running())
    if (r->reading() && (first == nullptr || before(*r, *first))) first = r.get();
  const size_t chunk = engine_->options().chunk;
  if (first == nullptr || first->left() <= chunk || first->passed >= kMostPassed) return first;
  Running* quick = nullptr;
  for (const auto& r : batch_.running()) {
    if (!r->reading() || r->left() > chunk || r->task->priority != first->task->priority) continue;
    if (quick == nullptr || before(*r, *quick)) quick = r.get();
  }
  if (quick == nullptr) return first;
  ++first->passed;
  return quick;
}

void Passes::read_chunk() {
  const bool writing = std::ranges::any_of(batch_.running(),
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
  if (memory_.comes_again(work, writing)) return;
  metrics_.prompt_chunk(work.goes_on ? 0 : work.tokens.size(), took);
  owed_ = took * (1 - prefill_share_) / prefill_share_;
  r->prompt_seconds += took;
  if (work.failure) return batch_.fail(*r, refusal_of(*work.failure), "error");
  if (work.goes_on) return;
  const bool fork_point = r->reader->took(work);
  r->task->listener->read(r->reader->at(), r->reuse.tokens, r->task->prompt.size());
  if (fork_point && r->task->reuse && r->reuse.kind != Reuse::Kind::kAnswer)
    memory_.keep(*r->session, r->prompt());
  if (last) begin_answers(*r, logits);
}

void Passes::begin_answers(Running& r, std::span<const float> logits) {
  const Task& task = *r.task;
  try {
    r.read = r.last_token = Clock::now();
    while (!r.rooms.empty()) {
      r.rooms.pop_back();  // the fork's own takes its place
      r.forks.push_back(r.session->fork());
      MemoryBudget::reserve(r.forks.back(), task);
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
    batch_.settle(r);
  } catch (const Error& error) {
    batch_.fail(r, refusal_of(error), "error");
  }
}

}  // namespace pith::serve
