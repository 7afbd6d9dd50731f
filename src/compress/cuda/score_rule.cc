#include "compress/cuda/score_rule.h"

namespace pith::cuda {

std::optional<Judgement> BestRows::judge(const BodyCounts& counts, Moment moment) const {
  const size_t budget = budget_at(counts.seen);
  if (counts.held <= budget) return std::nullopt;
  const bool full = counts.held >= budget + interval();
  const Moment watched = any_time() ? Moment::kTokenEnd : Moment::kRow;
  const bool now = moment == Moment::kPromptEnd || (moment == watched && full) ||
                   (moment == Moment::kChunkEnd && any_time());
  return now ? std::optional(Judgement{0, budget}) : std::nullopt;
}

}  // namespace pith::cuda
