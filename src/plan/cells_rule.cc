#include "plan/cells_rule.h"

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

constexpr size_t kOld = 0;  // of PlanState::own: body rows that are old

}  // namespace

void KeepCells::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  state.fed += n;
  const auto threshold = static_cast<uint32_t>(cells_.threshold);
  while (n > 0) {
    // Sampling is repeated until a row fits (Remark 2); once is enough but for the smallest T.
    while (state.body() >= threshold) {
      const auto old = static_cast<uint32_t>(state.own[kOld]);
      const auto keep = static_cast<uint32_t>(cells_.of(old, state.body()));
      steps.push_back({.op = Op::kJudge, .held = state.body(), .keep = keep, .old = old});
      state.own[kOld] = state.body() = keep;
    }
    const uint32_t run = std::min(n, threshold - state.body());
    steps.push_back({.op = Op::kMove, .from = from, .rows = run});
    state.body() += run;
    n -= run;
  }
}

// log_512 n (equation 7), never below 1: the model was trained without it.
float KeepCells::query_factor(int64_t seen) const {
  if (!logn_ || seen <= 512) return 1;
  return static_cast<float>(std::log(static_cast<double>(seen)) / std::log(512.0));
}

}  // namespace pith
