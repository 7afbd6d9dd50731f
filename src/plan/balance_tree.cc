#include "plan/balance_tree.h"

namespace pith {
namespace {

constexpr size_t kBatches = 0, kStratum = 1, kBase = 2, kLevels = 3,  // of PlanState::own
    kRests = kLevels + kBalanceRounds + 1;
// Norms of floats: 2^-149 to 2^128, and the denominator's tree.
constexpr size_t kMostTrees = 279;

}  // namespace

BalanceTree HalveBlocks::load(const PlanState& state) {
  BalanceTree tree;
  tree.batches = state.own[kBatches];
  tree.stratum = state.own[kStratum];
  tree.base = static_cast<uint32_t>(state.own[kBase]);
  for (size_t l = 0; l <= kBalanceRounds; ++l)
    tree.levels[l] = static_cast<uint32_t>(state.own[kLevels + l]);
  return tree;
}

void HalveBlocks::save(const BalanceTree& tree, PlanState& state) {
  state.own[kBatches] = tree.batches;
  state.own[kStratum] = tree.stratum;
  state.own[kBase] = tree.base;
  for (size_t l = 0; l <= kBalanceRounds; ++l) state.own[kLevels + l] = tree.levels[l];
  state.body() = tree.rows();
}

void HalveBlocks::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  BalanceTree tree = load(state);
  if (state.own[kRests] > 0) {
    steps.push_back({.from = from, .rows = n});
    tree.levels[0] += n;
  } else {
    advance(tree, shape_, n, [&](Step step) {
      step.from = step.op == Op::kHalve ? Zone::kBody : from;
      steps.push_back(step);
      return step.rows / 2;
    });
  }
  state.fed += n;
  save(tree, state);
}

// A flush takes a multiple of 2^T rows, so that halves are whole at every level.
void HalveBlocks::end_prompt(PlanState& state, Steps& steps) const {
  if (shape_.rounds == 0 || !(shape_.flush || shape_.rests)) return;
  BalanceTree tree = load(state);
  const auto emit = [&](Step step) {
    step.from = Zone::kBody;
    steps.push_back(step);
    return step.rows / 2;
  };
  while (tree.levels[0] >= shape_.block) balance_block(tree, shape_, emit);
  if (shape_.flush) {
    const uint32_t behind = tree.levels[0] % (1u << shape_.rounds);
    for (uint32_t level = 0; level < shape_.rounds; ++level) {
      if (tree.levels[level] == (level == 0 ? behind : 0)) continue;
      const uint32_t kept = halve_level(tree, shape_, {level, behind}, emit);
      tree.levels[level + 1] += kept;
    }
    tree.batches = 0;
  }
  state.own[kRests] = shape_.rests;
  save(tree, state);
}

void BalanceSums::feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const {
  state.fed += n;
  state.body() = static_cast<uint32_t>(most_rows(state.fed));
  steps.push_back({.op = Op::kTake, .from = from, .rows = n});
}

size_t BalanceSums::most_rows(size_t n) const {
  const size_t waiting = size_t{shape_.block} * (shape_.rounds + 1) * kMostTrees;
  return std::min(2 * n, (shape_.endless ? 0 : 2 * (n >> shape_.rounds)) + waiting);
}

}  // namespace pith
