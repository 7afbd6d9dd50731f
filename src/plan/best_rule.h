#pragma once
// The rule of every selector that gives rows a score and keeps the best: rows enter the body
// as they come, and when it is full, and when a prompt ends, the best stay.

#include <algorithm>

#include "plan/rule.h"

namespace pith {

/// Whose attention mass a score is made from.
struct MassWish {
  enum class Of : uint8_t {
    kNobody,
    kAll,   ///< every query so far
    kLast,  ///< the last query
    kVotes  ///< the last `queries` before a selection
  } of = Of::kNobody;
  size_t queries = 0;
};

/// Votes of the last `queries` queries for a selection that is `until` rows away and comes every
/// `interval` rows. A long pass brings all the votes itself. Short ones collect theirs; starting
/// anew when a whole number of periods is left makes the votes at the selection those of the last
/// queries.
MassRequest votes(size_t queries, size_t tokens, size_t interval, size_t until);

/// Rows that are evicted at once from a body of `rows` if no number is given: an eighth.
size_t turn_of(size_t rows);

/// In rows of one KV head.
struct BestSizes {
  /// Rows that stay when a prompt ends. Without an interval the body never holds more: the row that
  /// would be one too many makes room for turn_of(budget).
  size_t budget = 0;
  /// Rows by which a body outgrows its budget before `budget` rows stay again; 0: see above.
  size_t interval = 0;
  size_t exact = 0;    ///< sink and window
  int64_t slides = 0;  ///< rows that a query sees; 0 = all
  /// Heads whose budgets are one (AdaKV): each keeps its `least` best rows, all other rows compete.
  /// 0: each head keeps its best.
  size_t sharing = 0, least = 0;
};

class KeepBest : public Rule {
 public:
  explicit KeepBest(const BestSizes& sizes, const MassWish& wish = {})
      : sizes_(sizes), wish_(wish) {}

  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const final;
  void end_prompt(PlanState& state, Steps& steps) const final {
    select(state, budget_at(state.fed), steps);
  }
  MassRequest mass(const PlanState& state, size_t tokens) const final;
  bool by_contents() const final { return sizes_.sharing > 0; }
  size_t most_rows(size_t n) const override;
  size_t mean_rows(size_t n) const final;
  /// Hidden rows go first, also where heads share.
  size_t keeps_newest() const override { return sizes_.slides > 0 ? stay_at(0) : 0; }
  const MassWish& wish() const { return wish_; }
  const BestSizes& sizes() const { return sizes_; }
  /// Once `n` rows have come: rows that stay when a prompt ends, rows at which a body is selected
  /// from, and rows that stay then.
  virtual size_t budget_at(size_t /*n*/) const { return sizes_.budget; }
  size_t limit_at(size_t n) const { return budget_at(n) + std::max<size_t>(sizes_.interval, 1); }
  size_t stay_at(size_t n) const { return limit_at(n) - period_at(n); }

 private:
  size_t period_at(size_t n) const;
  void select(PlanState& state, size_t stay, Steps& steps) const;

  BestSizes sizes_;
  MassWish wish_;
};

/// PyramidKV's budgets: they fall from the first layer to the last. With K = budget + window rows
/// per layer on average, the last layer gets K / beta and the first 2 K minus that, linear between,
/// in kvpress's arithmetic: no layer gets more than there are tokens before the window (what it
/// cannot use goes to the last layers), and a pyramid whose tip is smaller than the window is given
/// up for K everywhere.
struct Pyramid {
  size_t budget = 0, window = 0;
  size_t layer = 0, layers = 1;
  double beta = 20;

  /// Rows before the window for one head once `tokens` have been seen.
  size_t at(size_t tokens) const;
};

class KeepPyramid final : public KeepBest {
 public:
  KeepPyramid(const BestSizes& sizes, const MassWish& wish, const Pyramid& pyramid)
      : KeepBest(sizes, wish), pyramid_(pyramid) {}
  size_t budget_at(size_t n) const override { return pyramid_.at(n + sizes().exact); }
  size_t keeps_newest() const override { return 0; }  // budgets move with the stream
  size_t most_rows(size_t n) const override;

 private:
  Pyramid pyramid_;
};

}  // namespace pith
