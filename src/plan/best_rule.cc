#include "plan/best_rule.h"

#include <cmath>

namespace pith {
namespace {

constexpr size_t kOld = 0;  // of PlanState::own: body rows that a selection left

}  // namespace

size_t turn_of(size_t rows) { return std::max<size_t>((rows + 7) / 8, 1); }

MassRequest votes(size_t queries, size_t tokens, size_t interval, size_t until) {
  if (tokens >= queries) return {queries, true};
  return {tokens, until % std::min(queries, interval) < tokens};
}

void KeepBest::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  if (state.gathers) {
    steps.push_back({.op = Op::kMove, .from = from, .rows = n});
    state.fed += n;
    state.body() += n;
    return;
  }
  while (n > 0) {
    // Budgets may move with the stream, so that the next selection is found row by row.
    uint32_t run = 0;
    bool full = false;
    while (run < n && !full) {
      ++run;
      full = state.body() + run >= limit_at(state.fed + run);
    }
    steps.push_back({.op = Op::kMove, .from = from, .rows = run});
    n -= run;
    state.fed += run;
    state.body() += run;
    if (full) select(state, stay_at(state.fed), steps);
  }
}

size_t KeepBest::period_at(size_t n) const {
  return sizes_.interval > 0 ? sizes_.interval : turn_of(budget_at(n));
}

void KeepBest::select(PlanState& state, size_t stay, Steps& steps) const {
  if (state.body() <= stay) return;
  Step step{.op = Op::kSelect,
            .held = state.body(),
            .keep = static_cast<uint32_t>(stay),
            .old = static_cast<uint32_t>(state.own[kOld])};
  if (sizes_.sharing > 0) {
    step.shared = true;
    step.least = static_cast<uint32_t>(std::min(sizes_.least, stay));
  }
  if (sizes_.slides > 0)
    step.hidden = static_cast<int64_t>(state.fed + sizes_.exact) - sizes_.slides;
  steps.push_back(step);
  state.body() = step.keep;
  state.own[kOld] = stay;
}

MassRequest KeepBest::mass(const PlanState& state, size_t tokens) const {
  switch (wish_.of) {
    case MassWish::Of::kNobody: return {};
    case MassWish::Of::kAll: return {tokens, false};
    case MassWish::Of::kLast: return {1, true};
    case MassWish::Of::kVotes: break;
  }
  const size_t limit = limit_at(state.fed);
  const size_t until = limit > state.body() ? limit - state.body() : 0;
  return votes(wish_.queries, tokens, period_at(state.fed), until);
}

size_t KeepBest::mean_rows(size_t n) const { return std::min(n, limit_at(n)); }

size_t KeepBest::most_rows(size_t n) const {
  if (sizes_.sharing == 0) return mean_rows(n);
  // All other heads may have no more than their least.
  const size_t budget = budget_at(n), others = sizes_.sharing - 1;
  const size_t most = budget + others * (budget - std::min(sizes_.least, stay_at(n)));
  return std::min(n, most + limit_at(n) - budget);
}

size_t Pyramid::at(size_t seen) const {
  const auto before = static_cast<double>(window), tokens = static_cast<double>(seen);
  const double mean = static_cast<double>(budget) + before;
  double least = mean / beta, most = 2 * mean - least;
  if (most >= tokens - before) {
    most = tokens - before;
    least = 2 * mean - most;
  }
  if (layers < 2 || !(tokens >= most && most >= least && least >= before)) return budget;
  const double step = (most - least) / static_cast<double>(layers - 1);
  // nearbyint rounds halves to even, as Python does.
  const double rows = std::nearbyint(most - static_cast<double>(layer) * step);
  return static_cast<size_t>(rows - std::min(rows, before));
}

size_t KeepPyramid::most_rows(size_t n) const {
  // Budgets move one way until the tip is as small as the window, where the pyramid may be given
  // up; stores keep some room of the rows that they had.
  const size_t steepest = 2 * (pyramid_.budget + pyramid_.window);
  const size_t fed = std::min(n, steepest - std::min(steepest, sizes().exact));
  return std::min(n, std::max({limit_at(0), limit_at(fed), limit_at(n)}));
}

}  // namespace pith
