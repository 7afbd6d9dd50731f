#pragma once
// Paths, what answers them, and refusals before a body is read.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "http/http.h"
#include "pith_serve/serve.h"
#include "serve/answer_endpoints.h"
#include "serve/guard.h"
#include "serve/metrics.h"
#include "serve/model_endpoints.h"
#include "serve/named_sessions.h"
#include "serve/preparer.h"
#include "serve/scheduler.h"
#include "serve/session_endpoints.h"
#include "serve/status_endpoints.h"
#include "serve/token_endpoints.h"
#include "serve/visit.h"
#include "serve/workers.h"

namespace pith::serve {

class Service {
 public:
  Service(const std::shared_ptr<Engine>& engine, std::shared_ptr<const ChatTemplate> chat,
          const ServeOptions& options, size_t memory);

  /// Of http::Hooks.
  std::optional<http::Response> admit(const http::Request& head) const;
  void handle(http::Request request, std::shared_ptr<http::Exchange> exchange);

  Scheduler& scheduler() { return scheduler_; }
  const Preparer& preparer() const { return preparer_; }

 private:
  struct Route {
    const char* method;
    const char* path;  ///< ends with '/': more may follow
    std::function<void(Visit&)> handler;
    bool at_once = false;  ///< on the thread that reads the request: it waits for nothing
  };
  std::vector<Route> all_routes();
  const Route* find(const http::Request& request, bool* other_method = nullptr) const;
  std::vector<http::Header> cors(const http::Request& request) const;

  const ServeOptions options_;
  const Guard guard_;
  Preparer preparer_;
  Metrics metrics_;
  const std::shared_ptr<ConversationFiles> files_;  // null: conversations stay in memory
  Scheduler scheduler_;
  AnswerEndpoints answers_;
  TokenEndpoints tokens_;
  ModelEndpoints models_;
  StatusEndpoints status_;
  NamedSessions named_;
  SessionEndpoints sessions_;
  const std::vector<Route> routes_;
  Workers workers_;  // last: its jobs use all of the above
};

}  // namespace pith::serve
