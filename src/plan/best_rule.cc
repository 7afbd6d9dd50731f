#include "plan/best_rule.h"

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

constexpr size_t kOld = 0;  // of PlanState::own: body rows that a judgement left

}  // namespace

MassRequest votes(size_t queries, size_t tokens, size_t interval, size_t until) {
  if (tokens >= queries) return {queries, true};
  return {tokens, until % std::min(queries, interval) < tokens};
}

void KeepBest::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  while (n > 0) {
    // Budgets may move with the stream, so that the next judgement is found row by row.
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
    if (full) judge(state, steps);
  }
}

void KeepBest::judge(PlanState& state, Steps& steps) const {
  const size_t budget = budget_at(state.fed);
  if (state.body() <= budget) return;
  Step step{.op = Op::kJudge,
            .held = state.body(),
            .keep = static_cast<uint32_t>(budget),
            .old = static_cast<uint32_t>(state.own[kOld])};
  if (sizes_.sharing > 0) {
    step.shared = true;
    step.least = static_cast<uint32_t>(std::min(sizes_.least, budget));
  }
  if (sizes_.slides > 0)
    step.hidden = static_cast<int64_t>(state.fed + sizes_.exact) - sizes_.slides;
  steps.push_back(step);
  state.body() = step.keep;
  state.own[kOld] = budget;
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
  return votes(wish_.queries, tokens, sizes_.interval, until);
}

size_t KeepBest::mean_rows(size_t n) const { return std::min(n, limit_at(n)); }

size_t KeepBest::most_rows(size_t n) const {
  if (sizes_.sharing == 0) return mean_rows(n);
  // All other heads may have no more than their least.
  const size_t budget = budget_at(n), others = sizes_.sharing - 1;
  const size_t most = budget + others * (budget - std::min(sizes_.least, budget));
  return std::min(n, most + sizes_.interval);
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

}  // namespace pith
