#pragma once
// A plan's steps carried out on the run's rows: bounds move, and rows where they must.
//
// A selection of rows that join, whose outcome does not depend on when it comes, waits for others
// of its kind: up to 31 rows that the plan has dropped are then still there, exact and with weight
// 1, until the chunk ends, or the prompt.

#include <span>

#include "cache/cuda/heavy_split.h"

namespace pith::cuda {

class StepExecutor {
 public:
  StepExecutor(HeadStores& stores, ChunkSpace& space) : s_(stores), space_(space) {}

  /// The effect of a pass's steps on rows that are there already.
  void carry_out(std::span<const Step> steps, bool chunk, LateWork& late);

 private:
  /// With `late` the work may be left there, as RunCodes::pack's.
  void carry_out(const Step& step, LateWork* late);
  /// Some of the body's last rows stay.
  void select(const Step& step, LateWork* late);
  /// Of the body's first `held` rows the call's.
  void select_now(KeepCall& call, size_t held, const Step& step);
  /// Whether those of other layers and sessions can be selected with them.
  bool joins_others() const;
  /// Some of the body's rows stay, of each head as many as the device finds.
  void share(const Step& step);

  HeadStores& s_;
  ChunkSpace& space_;
};

}  // namespace pith::cuda
