#pragma once
// Paths and what answers them.

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "http/http.h"
#include "pith_serve/serve.h"
#include "serve/gate.h"
#include "serve/guard.h"
#include "serve/listeners.h"
#include "serve/metrics.h"
#include "serve/preparer.h"
#include "serve/reply.h"
#include "serve/scheduler.h"
#include "serve/workers.h"

namespace pith::serve {

/// The argument of a path's handler.
struct Visit {
  http::Request request;
  std::shared_ptr<Reply> reply;
  std::string rest;  ///< of the path, where a route takes more: "abc/save"
};

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
  using Handler = void (Service::*)(Visit&);
  struct Route {
    const char* method;
    const char* path;  ///< ends with '/': more may follow
    Handler handler;
  };
  static const std::vector<Route>& routes();
  const Route* find(const http::Request& request, bool* other_method = nullptr) const;
  std::vector<http::Header> cors(const http::Request& request) const;

  // service.cc
  void health(Visit& v);
  void models(Visit& v);
  void one_model(Visit& v);
  void props(Visit& v);
  void metrics(Visit& v);
  Json model_json(const Preset& preset) const;
  // service_page.cc
  void page(Visit& v);
  void status(Visit& v);
  // service_answers.cc
  void chat(Visit& v);
  void completions(Visit& v);
  void responses(Visit& v);
  void messages(Visit& v);
  void infill(Visit& v);
  void answer(Visit& v, Call call, Shape shape, Json repeated = {});
  // service_tokens.cc
  void tokenize(Visit& v);
  void detokenize(Visit& v);
  void apply_template(Visit& v);
  void count_tokens(Visit& v);
  void count_message_tokens(Visit& v);
  // service_sessions.cc
  void sessions(Visit& v);
  void one_session(Visit& v);
  void change_session(Visit& v);
  void delete_session(Visit& v);
  void slots(Visit& v);
  void change_slot(Visit& v);
  void clear_cache(Visit& v);
  Json save_session(const std::string& id, const std::string& who, const std::string& name,
                    bool replace);
  Json restore_session(const std::string& id, const std::string& who, const std::string& name,
                       const std::string& model);
  /// A copy of an idle session, from its file where it has to be.
  IdleSession state_of(const std::string& id, const std::string& who);
  /// Throws Refusal (409) while a request has the session.
  void refuse_busy(const std::string& id, const std::string& tenant);
  size_t erase_session(const std::string& id, const std::string& who);

  GateOptions gate_options() const;

  const std::shared_ptr<Engine> engine_;
  const ServeOptions options_;
  const Guard guard_;
  const int64_t created_;
  Preparer preparer_;
  Metrics metrics_;
  const std::shared_ptr<ConversationFiles> files_;  // null: conversations stay in memory
  Scheduler scheduler_;
  Workers workers_;  // last: its jobs use all of the above
};

}  // namespace pith::serve
