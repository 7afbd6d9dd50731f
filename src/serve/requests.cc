#include "serve/requests.h"

#include <fmt/format.h>

#include <algorithm>

namespace pith::serve {
namespace {

std::string mebibytes(size_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / 1048576);
}

}  // namespace

Requests::Requests(std::shared_ptr<Engine> engine, const SchedulerOptions& options,
                   Metrics& metrics)
    : engine_(std::move(engine)),
      parallel_(options.parallel),
      most_queued_(options.queue),
      memory_(options.memory),
      metrics_(metrics),
      costs_(engine_) {}

int Requests::retry_after() const {
  const double seconds = static_cast<double>(queued_) * seconds_each_ /
                         static_cast<double>(std::max<size_t>(parallel_, 1));
  return static_cast<int>(std::clamp(seconds, 1.0, 120.0));
}

Refusal Requests::unavailable(const char* code, const std::string& why) const {
  Refusal refusal(503, code, why);
  refusal.retry_after = retry_after();
  metrics_.refused(code);
  return refusal;
}

Requests::Accepted Requests::accept(const Task& task) {
  if (draining()) throw unavailable("draining", "the server is about to end; try another one");
  const size_t tokens = task.prompt.size() + task.max_tokens;
  const size_t bytes = costs_.bytes(task.policy, task.session, tokens) * task.choices;
  const size_t scratch = engine_->ledger().total_bytes();
  if (bytes + scratch > memory_) {
    metrics_.refused("memory_budget_exceeded");
    throw Refusal(400, "memory_budget_exceeded",
                  fmt::format("{} tokens and an answer of {} may take {} under this policy; the "
                              "server has {} (--memory). Ask for a shorter answer (max_tokens), or "
                              "a policy that keeps less",
                              task.prompt.size(), task.max_tokens, mebibytes(bytes),
                              mebibytes(memory_ - std::min(scratch, memory_))));
  }
  if (queued_ >= most_queued_)
    throw unavailable("queue_full", fmt::format("{} requests wait already", most_queued_));
  const std::lock_guard guard(lock_);
  if (!task.conversation.empty()) {
    OfConversation& others = named_[{task.tenant, task.conversation}];
    const bool held =
        others.count > 0 && others.latest != task.listener.get() && !others.latest->gone();
    if (held && task.alone)
      throw Refusal(409, "session_busy",
                    fmt::format("the session '{}' has a request that is not answered yet; wait "
                                "for it, or fork the session",
                                task.conversation.substr(0, 130)));
    others = {task.listener.get(), others.count + 1};
  }
  ++queued_;
  ++busy_;
  return {bytes, numbers_++};
}

void Requests::leaves_conversation(const Task& task) {
  if (task.conversation.empty()) return;
  const std::lock_guard guard(lock_);
  const auto named = named_.find({task.tenant, task.conversation});
  if (--named->second.count == 0) named_.erase(named);
}

bool Requests::has(const std::string& conversation, const std::string& tenant) {
  const std::lock_guard guard(lock_);
  return named_.contains({tenant, conversation});
}

}  // namespace pith::serve
