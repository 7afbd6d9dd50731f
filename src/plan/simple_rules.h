#pragma once
// Rules that keep everything, nothing, or a random sample.

#include "plan/rule.h"

namespace pith {

/// Every row stays, but for those that a layer which sees `slides` rows (0 = all) has left behind:
/// they go a few hundred at a time.
class KeepAll final : public Rule {
 public:
  explicit KeepAll(int64_t slides = 0) : slides_(static_cast<size_t>(slides)) {}
  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const override;
  size_t most_rows(size_t n) const override;

 private:
  size_t slides_;
};

class DropAll final : public Rule {
 public:
  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const override;
  size_t most_rows(size_t) const override { return 0; }
};

/// Each row stays with probability `rate`: what a head holds depends on what it draws.
class KeepShare final : public Rule {
 public:
  /// `weights`: a row that stays stands for 1 / rate.
  KeepShare(double rate, bool weights) : rate_(rate), weights_(weights) {}
  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const override;
  bool by_contents() const override { return true; }
  size_t most_rows(size_t n) const override;

 private:
  double rate_;
  bool weights_;
};

/// A sample of `budget` rows.
class KeepSample final : public Rule {
 public:
  /// `weights`: each stands for an equal share of all rows.
  KeepSample(size_t budget, bool weights) : budget_(budget), weights_(weights) {}
  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const override;
  size_t most_rows(size_t n) const override { return n < budget_ ? n : budget_; }

 private:
  size_t budget_;
  bool weights_;
};

}  // namespace pith
