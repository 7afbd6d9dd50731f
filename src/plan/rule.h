#pragma once
// A selector's rule: when it selects and how many rows stay, for all devices. Rules see counts
// alone: no row, no random number, no device. A rule's memory is in the PlanState.

#include "plan/step.h"

namespace pith {

/// A stream of unknown length: a number that stays small after this many rows is bounded.
inline constexpr size_t kEndlessStream = size_t{1} << 50;

class Rule {
 public:
  virtual ~Rule() = default;

  /// `n` rows stand in `from`, kLeaving or kEvicted: appends the steps that take all of them, and
  /// changes the state as they will. However a stream is cut into calls, the rows end the same.
  /// While the state gathers, rows that contents or counts would make go are kept until end_prompt;
  /// rules that take a row once, as it comes, need not wait.
  virtual void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const = 0;
  /// The prompt is complete.
  virtual void end_prompt(PlanState& /*state*/, Steps& /*steps*/) const {}
  /// The mass that it needs of a pass of `tokens` queries; called before each. A rule needs mass in
  /// all passes or in none, since rows carry mass from the beginning or never.
  virtual MassRequest mass(const PlanState& /*state*/, size_t /*tokens*/) const { return {}; }
  /// A factor on the scores of a query that has seen `seen` tokens, itself included; it holds for
  /// every row that the query attends to.
  virtual float query_factor(int64_t /*seen*/) const { return 1; }
  /// True if the number of rows of a head depends on their contents; the state has the most or the
  /// mean, see PlanState::rows.
  virtual bool by_contents() const { return false; }
  /// In a layer that hides rows: the number of newest rows fed that always stay, with weight 1. 0
  /// for a rule that guarantees none, or does not hide.
  virtual size_t keeps_newest() const { return 0; }
  /// The most rows that one head can hold after `n` rows have left the window.
  virtual size_t most_rows(size_t n) const = 0;
  /// The most that heads can hold on average.
  virtual size_t mean_rows(size_t n) const { return most_rows(n); }
};

}  // namespace pith
