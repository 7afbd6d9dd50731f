#include "compress/cuda/score_rule.h"

namespace pith::cuda {

std::optional<Judgement> BestRows::judge(const BodyCounts& counts, Moment moment) const {
  const size_t budget = rule_->budget_at(counts.seen);
  if (counts.held <= budget) return std::nullopt;
  const bool full = counts.held >= rule_->limit_at(counts.seen);
  const Moment watched = any_time() ? Moment::kTokenEnd : Moment::kRow;
  const bool now = moment == Moment::kPromptEnd || (moment == watched && full) ||
                   (moment == Moment::kChunkEnd && any_time());
  return now ? std::optional(Judgement{0, budget}) : std::nullopt;
}

MassRequest BestRows::mass(size_t tokens, const BodyCounts& counts) const {
  PlanState state;
  state.fed = counts.seen;
  state.body() = static_cast<uint32_t>(counts.held);
  return rule_->mass(state, tokens);
}

}  // namespace pith::cuda
