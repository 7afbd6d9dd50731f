#pragma once
// What the score selectors' rules on the GPU share: budget and interval as on the CPU.

#include "methods/scores/score_selector.h"
#include "methods/scores/scores_cuda.h"

namespace pith::cuda {

class BudgetRule : public BestRows {
 public:
  BudgetRule(const SelectorPlace& p, const ScoreOptions& options)
      : sizes_(score_budget(options, p.budget)) {}
  size_t budget_at(size_t) const override { return sizes_.budget; }
  size_t interval() const final { return sizes_.interval; }

 protected:
  ScoreBudget sizes_;
};

}  // namespace pith::cuda
