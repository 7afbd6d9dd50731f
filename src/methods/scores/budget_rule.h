#pragma once
// What the score selectors' rules on the GPU share: budget and interval as on the CPU.

#include "methods/scores/score_selector.h"
#include "methods/scores/scores_cuda.h"

namespace pith::cuda {

class BudgetRule : public BestRows {
 public:
  using BestRows::BestRows;
  BudgetRule(const SelectorPlace& p, const ScoreOptions& options, const MassWish& wish = {})
      : BestRows(std::make_shared<KeepBest>(best_sizes(score_budget(options, p.budget), p.site),
                                            wish)) {}
};

}  // namespace pith::cuda
