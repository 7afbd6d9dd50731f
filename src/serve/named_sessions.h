#pragma once
// Idle sessions in the hands of clients: copies, and files of a name that they choose.

#include <memory>
#include <string>

#include "pith_serve/serve.h"
#include "serve/preparer.h"
#include "serve/reply.h"
#include "serve/scheduler.h"

namespace pith::serve {

Refusal no_session(const std::string& id);

/// `id`: a session's name; `who`: the tenant. Any thread but the scheduler's.
class NamedSessions {
 public:
  /// `files`: those of idle sessions; null: memory alone.
  NamedSessions(std::shared_ptr<Engine> engine, const ServeOptions& options,
                const Preparer& preparer, std::shared_ptr<const ConversationFiles> files,
                Scheduler& scheduler, Metrics& metrics);

  /// A copy of an idle session, from its file where it has to be. Throws Refusal (404, 409).
  IdleSession copy(const std::string& id, const std::string& who);
  /// Keeps a session under its name. Throws Refusal (409) while a request has the name.
  void add(IdleSession session);
  /// The tokens of the session that is no more.
  size_t erase(const std::string& id, const std::string& who);
  /// To and from a file of that name in the folder for sessions.
  Json save(const std::string& id, const std::string& who, const std::string& name, bool replace);
  Json restore(const std::string& id, const std::string& who, const std::string& name,
               const std::string& model);

 private:
  /// Throws Refusal (409) while a request has the session.
  void refuse_busy(const std::string& id, const std::string& tenant);
  /// Has `read` fill an empty session. Where memory lacks for it, others leave memory first.
  template <class Read>
  Session with_room(const SessionOptions& options, size_t tokens, const Read& read);
  /// As it lies there: a copy in memory, or the tokens of its file. Throws Refusal (404, 409).
  IdleSession look(const std::string& id, const std::string& tenant);

  const std::shared_ptr<Engine> engine_;
  const ServeOptions& options_;
  const Preparer& preparer_;
  const std::shared_ptr<const ConversationFiles> files_;
  Scheduler& scheduler_;
  Metrics& metrics_;
};

}  // namespace pith::serve
