#pragma once
// Conversations by name, and llama.cpp's slots, which are conversations named slot-0, slot-1, ...

#include "pith_serve/serve.h"
#include "serve/named_sessions.h"
#include "serve/preparer.h"
#include "serve/scheduler.h"
#include "serve/visit.h"

namespace pith::serve {

class SessionEndpoints {
 public:
  SessionEndpoints(const ServeOptions& options, const Preparer& preparer, Scheduler& scheduler,
                   NamedSessions& named)
      : options_(options), preparer_(preparer), scheduler_(scheduler), named_(named) {}

  void sessions(Visit& v);
  void one_session(Visit& v);
  void change_session(Visit& v);
  void delete_session(Visit& v);
  void slots(Visit& v);
  void change_slot(Visit& v);
  void clear_cache(Visit& v);

 private:
  const ServeOptions& options_;
  const Preparer& preparer_;
  Scheduler& scheduler_;
  NamedSessions& named_;
};

}  // namespace pith::serve
