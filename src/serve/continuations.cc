#include "serve/continuations.h"

#include <span>

namespace pith::serve {
namespace {

// A server that ends writes what is idle at once, and other conversations when they are answered.
constexpr std::chrono::milliseconds kMostOnTheWay{1000};

}  // namespace

OwnState Continuations::own_state(const Task& task) const {
  if (!task.reuse || task.conversation.empty()) return {};
  IdleSession* idle = idle_.find(task.conversation, task.tenant);
  if (idle == nullptr || idle->policy != task.policy) return {};
  const std::span<const int32_t> prompt(task.prompt);
  OwnState own;
  if (idle->session && begins(prompt, idle->session->token_ids()))
    own = {idle, idle->session->tokens(), false};
  else if (idle->file && idle->file->tokens < prompt.size() &&
           digest_of_ids(prompt.first(idle->file->tokens)) == idle->file->ids)
    own = {idle, idle->file->tokens, true};
  // Of states that are as long, an answer's is its own conversation's.
  const Prompt asked{task.prompt, task.fork_points, task.tenant, task.conversation};
  return own.tokens >= tree_.longest(task.session, asked) ? own : OwnState{};
}

bool Continuations::take_over(const Task& task, std::chrono::steady_clock::time_point since) {
  if (!files_ || !task.reuse || task.conversation.empty()) return true;
  const IdleSession* here = idle_.find(task.conversation, task.tenant);
  size_t tokens = 0;
  if (here) tokens = here->writing > 0 ? SIZE_MAX : here->tokens();
  if (const auto found = files_->take({task.conversation, task.tenant, task.policy, 0}, tokens)) {
    idle_.adopt(found->first, found->second);
    return true;
  }
  return !files_->others_leave() || std::chrono::steady_clock::now() - since >= kMostOnTheWay;
}

void Continuations::fetch(const OwnState& own, std::shared_ptr<const Task> task, Session room,
                          Fetched then) {
  const IdleSession& idle = *own.idle;
  const ConversationName name{idle.id, idle.tenant, idle.policy, idle.used};
  spill_.read(std::move(room), name, std::move(task),
              [this, name, then = std::move(then)](std::shared_ptr<Session> session,
                                                   const std::string& failure, bool usable) {
                idle_.was_read(name, session != nullptr, usable);
                then(std::move(session), failure);
              });
}

}  // namespace pith::serve
