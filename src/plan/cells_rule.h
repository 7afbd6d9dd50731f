#pragma once
// BUZZ's rule: when the body holds `threshold` rows and another comes, one row of each cell stays.
// Old rows, survivors of a selection, lie in cells of `old_stride`, new ones behind them in cells
// of `new_stride`; the last cell of each may be short. Of a prompt that gathers no more cells are
// thinned than must be: new ones from the oldest on, then old ones; or it is selected from in one
// pass, in cells of one size.

#include <algorithm>

#include "plan/rule.h"

namespace pith {

struct Cells {
  size_t threshold = 0, new_stride = 1, old_stride = 1;
  size_t each = 1;     ///< rows that a cell of new rows keeps
  bool whole = false;  ///< prompts that gather: one pass

  /// Rows that stay of `held`, of which the first `old` are old.
  size_t of(size_t old, size_t held) const {
    return (old + old_stride - 1) / old_stride + kept_new(held - old, new_stride);
  }
  /// Of `rows` in cells of `stride`, which is more than `each`.
  size_t kept_new(size_t rows, size_t stride) const {
    return rows / stride * each + std::min(each, rows % stride);
  }
  /// The most rows that stay of a prompt that gathered, so that the next eviction is a while away.
  size_t most_of_prompt() const { return std::max(each, threshold - threshold / 4); }
  /// The rows of a cell in the one pass over `held` rows.
  size_t whole_stride(size_t held) const {
    const size_t most = most_of_prompt();
    return std::max(each + 1, (held * each + most - 1) / most);
  }
};

class KeepCells final : public Rule {
 public:
  /// `by_mass`: a cell's row is that with the most attention; `logn`: scores grow as log_512 of the
  /// tokens seen.
  KeepCells(const Cells& cells, bool by_mass, bool logn)
      : cells_(cells), by_mass_(by_mass), logn_(logn) {}

  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const override;
  void end_prompt(PlanState& state, Steps& steps) const override;
  MassRequest mass(const PlanState&, size_t tokens) const override {
    return {by_mass_ ? tokens : 0, false};
  }
  float query_factor(int64_t seen) const override;
  size_t most_rows(size_t n) const override { return n < cells_.threshold ? n : cells_.threshold; }

 private:
  /// Until at most `most` rows are left.
  void sample(PlanState& state, size_t most, Steps& steps) const;
  /// The same of a prompt, cell by cell.
  void sample_prompt(PlanState& state, size_t most, Steps& steps) const;

  Cells cells_;
  bool by_mass_, logn_;
};

}  // namespace pith
