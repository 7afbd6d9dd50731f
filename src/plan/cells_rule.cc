#include "plan/cells_rule.h"

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

constexpr size_t kOld = 0;  // of PlanState::own: body rows that are old

}  // namespace

// As rows come, once is enough but for the smallest T.
void KeepCells::sample(PlanState& state, size_t most, Steps& steps) const {
  while (state.body() > most) {
    const auto old = static_cast<uint32_t>(state.own[kOld]);
    const auto keep = static_cast<uint32_t>(cells_.of(old, state.body()));
    steps.push_back({.op = Op::kSelect, .held = state.body(), .keep = keep, .old = old});
    state.own[kOld] = state.body() = keep;
  }
}

// Remark 2: sampling goes on until what is selected fits. It ends as soon as it does: a prompt of
// one row more than T does not lose four of five.
void KeepCells::sample_prompt(PlanState& state, size_t most, Steps& steps) const {
  while (state.body() > most) {
    const auto old = static_cast<uint32_t>(state.own[kOld]);
    const uint32_t held = state.body();
    const bool fresh = cells_.kept_new(held - old, cells_.new_stride) < held - old;
    const uint32_t first = fresh ? old : 0, rows = fresh ? held - old : old;
    const size_t stride = fresh ? cells_.new_stride : cells_.old_stride;
    const size_t each = fresh ? cells_.each : 1;
    const size_t asked = (held - most + stride - each - 1) / (stride - each);  // cells
    const auto thinned = static_cast<uint32_t>(std::min<size_t>(rows, asked * stride));
    const size_t kept = fresh ? cells_.kept_new(thinned, stride) : cells_.of(thinned, thinned);
    const auto keep = static_cast<uint32_t>(held - thinned + kept);
    steps.push_back({.op = Op::kSelect,
                     .held = held,
                     .keep = keep,
                     .old = old,
                     .first = first,
                     .behind = held - first - thinned});
    state.body() = keep;
    state.own[kOld] = fresh ? old + kept : old - thinned + kept;
  }
}

void KeepCells::end_prompt(PlanState& state, Steps& steps) const {
  if (!state.gathers) return;
  if (cells_.whole && state.body() > cells_.threshold) {
    const uint32_t held = state.body();
    const size_t stride = cells_.whole_stride(held);
    const auto keep = static_cast<uint32_t>(cells_.kept_new(held, stride));
    const auto old = static_cast<uint32_t>(state.own[kOld]);
    steps.push_back({.op = Op::kSelect, .held = held, .keep = keep, .old = old, .size = stride});
    state.own[kOld] = state.body() = keep;
  }
  if (state.body() > cells_.threshold) sample_prompt(state, cells_.most_of_prompt(), steps);
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
