#include "plan/cells_rule.h"

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

constexpr size_t kOld = 0;  // of PlanState::own: body rows that are old

}  // namespace

// Sampling is repeated until a row fits (Remark 2); as rows come, once is enough but for the
// smallest T.
void KeepCells::sample(PlanState& state, size_t most, Steps& steps) const {
  while (state.body() > most) {
    const auto old = static_cast<uint32_t>(state.own[kOld]);
    const auto keep = static_cast<uint32_t>(cells_.of(old, state.body()));
    steps.push_back({.op = Op::kJudge, .held = state.body(), .keep = keep, .old = old});
    state.own[kOld] = state.body() = keep;
  }
}

void KeepCells::end_prompt(PlanState& state, Steps& steps) const {
  if (!state.gathers) return;
  if (cells_.whole && state.body() > cells_.threshold) {
    const uint32_t held = state.body();
    const size_t stride = cells_.whole_stride(held);
    const auto keep = static_cast<uint32_t>(cells_.kept_new(held, stride));
    steps.push_back({.op = Op::kJudge, .held = held, .keep = keep, .size = stride});
    state.own[kOld] = state.body() = keep;
  }
  sample(state, cells_.threshold, steps);
}

void KeepCells::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  state.fed += n;
  const auto threshold = static_cast<uint32_t>(cells_.threshold);
  while (n > 0) {
    if (!state.gathers) sample(state, threshold - 1, steps);
    const uint32_t run = state.gathers ? n : std::min(n, threshold - state.body());
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
