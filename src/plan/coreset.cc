#include "plan/coreset.h"

namespace pith {
namespace {

constexpr size_t kTau = 0, kStratum = 1, kCoreset = 2, kLevels = 3;  // of PlanState::own

}  // namespace

ExpressState KeepCoreset::load(const PlanState& state) {
  ExpressState s;
  s.seen = state.fed;
  s.tau = state.fed > 0 ? state.own[kTau] : 1;
  s.stratum = state.own[kStratum];
  s.coreset = static_cast<uint32_t>(state.own[kCoreset]);
  for (size_t l = 0; l < kExpressLevels; ++l)
    s.levels[l] = static_cast<uint32_t>(state.own[kLevels + l]);
  return s;
}

void KeepCoreset::save(const ExpressState& s, PlanState& state) {
  state.fed = s.seen;
  state.own[kTau] = s.tau;
  state.own[kStratum] = s.stratum;
  state.own[kCoreset] = s.coreset;
  for (size_t l = 0; l < kExpressLevels; ++l) state.own[kLevels + l] = s.levels[l];
  state.body() = static_cast<uint32_t>(s.rows());
}

void KeepCoreset::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  ExpressState coreset = load(state);
  advance(coreset, shape_, n, [&](Step step) {
    step.from = step.op == Op::kHalve ? Zone::kBody : from;
    steps.push_back(step);
  });
  save(coreset, state);
}

}  // namespace pith
