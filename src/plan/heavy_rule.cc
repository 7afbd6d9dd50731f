#include "plan/heavy_rule.h"

#include <algorithm>

#include "plan/best_rule.h"

namespace pith {

MassRequest HeavySizes::mass(size_t tokens, size_t held) const {
  return by_mass() ? votes(queries, tokens, interval, most() - held) : MassRequest{};
}

/// Of all that the zone holds `budget` rows stay.
void KeepHeavy::split(PlanState& state, Steps& steps) const {
  uint32_t& held = state.at(Zone::kHeavy);
  const auto keep = static_cast<uint32_t>(sizes_.budget), rest = held - keep;
  steps.push_back({.op = Op::kSplit,
                   .from = Zone::kHeavy,
                   .to = Zone::kEvicted,
                   .rows = rest,
                   .held = held,
                   .keep = keep,
                   .least = static_cast<uint32_t>(sizes_.by_key)});
  held = keep;
  rest_->feed(state, Zone::kEvicted, rest, steps);
}

void KeepHeavy::end_prompt(PlanState& state, Steps& steps) const {
  if (state.gathers && state.at(Zone::kHeavy) >= sizes_.most()) split(state, steps);
  rest_->end_prompt(state, steps);
}

void KeepHeavy::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  uint32_t& held = state.at(Zone::kHeavy);
  const auto most = static_cast<uint32_t>(sizes_.most());
  for (uint32_t run; n > 0; n -= run) {
    run = state.gathers ? n : std::min(n, most - held);
    steps.push_back({.op = Op::kMove, .from = from, .to = Zone::kHeavy, .rows = run});
    held += run;
    if (held >= most && !state.gathers) split(state, steps);
  }
}

size_t KeepHeavy::most_rows(size_t n) const {
  return std::min(n, sizes_.most()) + rest_->most_rows(n > sizes_.budget ? n - sizes_.budget : 0);
}

}  // namespace pith
