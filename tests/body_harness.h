#pragma once
// A selector's body fed directly, without a cache around it.

#include <utility>
#include <vector>

#include "select/body_steps.h"

namespace pith::test {

class FedBody {
 public:
  /// One head; `format` and `context` stay with the caller.
  FedBody(const Context& context, SelectorParts parts, const RowFormat& format)
      : selector(std::move(parts)), context_(context) {
    bodies.emplace_back(context, format);
  }

  void feed(const NewRows& rows) {
    Steps steps;
    selector.rule->feed(state, Zone::kLeaving, static_cast<uint32_t>(rows.count), steps);
    BodySteps body(context_, selector, bodies);
    body.bring({rows});
    body.run(steps);
  }
  RowStore& store() { return bodies[0].store(); }

  SelectorParts selector;
  PlanState state;
  std::vector<HeadBody> bodies;

 private:
  const Context& context_;
};

}  // namespace pith::test
