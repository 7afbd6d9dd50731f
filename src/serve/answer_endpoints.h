#pragma once
// Chat and text completions, in the forms of four APIs.

#include "serve/call.h"
#include "serve/gate.h"
#include "serve/listeners.h"
#include "serve/preparer.h"
#include "serve/scheduler.h"
#include "serve/visit.h"

namespace pith::serve {

class AnswerEndpoints {
 public:
  AnswerEndpoints(const Preparer& preparer, const GateOptions& gate_options, Scheduler& scheduler)
      : preparer_(preparer), gate_options_(gate_options), scheduler_(scheduler) {}

  void chat(Visit& v);
  void completions(Visit& v);
  void responses(Visit& v);
  void messages(Visit& v);
  void infill(Visit& v);

 private:
  void answer(Visit& v, Call call, Shape shape, Json repeated = {});

  const Preparer& preparer_;
  const GateOptions gate_options_;
  Scheduler& scheduler_;
};

}  // namespace pith::serve
