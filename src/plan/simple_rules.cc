#include "plan/simple_rules.h"

#include <algorithm>
#include <cmath>

namespace pith {
namespace {

constexpr uint32_t kForgetEvery = 256;  // rows
// Rows that are selected together. The groups of every codec are divisors: which rows share a group
// must not depend on how rows arrive.
constexpr uint32_t kSamplePiece = 32;

}  // namespace

void KeepAll::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  state.fed += n;
  const auto most = static_cast<uint32_t>(slides_) + kForgetEvery;
  while (n > 0) {
    const uint32_t run = slides_ > 0 ? std::min(n, most - state.body()) : n;
    steps.push_back({.op = Op::kMove, .from = from, .rows = run});
    state.body() += run;
    n -= run;
    if (slides_ == 0 || state.body() < most) continue;
    steps.push_back({.op = Op::kForget, .from = Zone::kBody, .rows = kForgetEvery});
    state.body() -= kForgetEvery;
  }
}

size_t KeepAll::most_rows(size_t n) const {
  return slides_ > 0 ? std::min(n, slides_ + kForgetEvery) : n;
}

void DropAll::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  state.fed += n;
  steps.push_back({.op = Op::kForget, .from = from, .rows = n});
}

void KeepShare::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  state.fed += n;
  steps.push_back({.op = Op::kSelect, .from = from, .rows = n, .keep = kByContents});
  if (weights_) steps.push_back({.op = Op::kWeigh});
  state.body() += n;
}

// Six standard deviations above the mean: what an estimate may promise.
size_t KeepShare::most_rows(size_t n) const {
  const double mean = rate_ * static_cast<double>(n);
  const double bound = mean + 6 * std::sqrt(mean * (1 - rate_)) + 1;
  return std::min(n, static_cast<size_t>(std::ceil(bound)));
}

void KeepSample::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  state.fed += n;
  for (uint32_t run; n > 0; n -= run) {
    run = std::min(n, kSamplePiece);
    const auto keep = static_cast<uint32_t>(std::min<size_t>(budget_, state.body() + run));
    steps.push_back(
        {.op = Op::kSelect, .from = from, .rows = run, .held = state.body(), .keep = keep});
    state.body() = keep;
  }
  if (weights_ && state.fed > budget_)
    steps.push_back({.op = Op::kWeigh, .weight = state.fed, .of = budget_});
}

}  // namespace pith
