#pragma once
// The plan of a stream: tokens come, steps go out. Sink first, then window, then whole blocks to
// the rule that keeps the body; protected rows go to a zone of their own and all others are
// numbered without them. One plan serves all KV heads with the same rule and sizes.
//
// Where rows are follows from how many have come, never from how they were cut into passes.

#include <functional>
#include <memory>
#include <span>

#include "plan/protected_rows.h"
#include "plan/rule.h"
#include "plan/schedule.h"

namespace pith {

class Plan {
 public:
  /// `most`: rows that leave the window at once (rounded up to a block): memory for rows on the
  /// way.
  Plan(std::shared_ptr<const Rule> rule, const ScheduleShape& shape, size_t most);

  const Rule& rule() const { return *rule_; }
  const ScheduleShape& shape() const { return shape_; }
  const PlanState& state() const { return state_; }
  const ProtectedRows& protected_rows() const { return protected_; }
  /// Replaces the rows to protect, all after the sink; those of tokens seen must not change.
  void protect(ProtectedRows rows) { protected_ = std::move(rows); }

  /// The needs of a pass of `tokens`, before it; nothing changes.
  MassRequest mass(size_t tokens) const { return rule_->mass(state_, tokens); }
  /// The steps of a pass's rows; valid until the next call. `gathers`: their rule waits for
  /// end_prompt(), which comes before any other rows.
  std::span<const Step> append(size_t tokens, bool gathers = false);
  std::span<const Step> end_prompt();
  /// The state after so many tokens, of which the first prompt_ends[i] completed a prompt: it is a
  /// function of these alone. For a plan that has seen nothing, and whose rows to protect are set.
  /// `seen` is shown every step. `gathered`: where each prompt began, if it was gathered; or empty.
  void replay(uint64_t tokens, std::span<const uint64_t> prompt_ends,
              const std::function<void(const Step&)>& seen = {},
              std::span<const uint64_t> gathered = {});

 private:
  void append_open(size_t count);
  void bring(Zone zone, size_t count);
  void leave(size_t count);

  std::shared_ptr<const Rule> rule_;
  ScheduleShape shape_;
  size_t most_;
  ProtectedRows protected_;
  PlanState state_;
  Steps steps_;
};

}  // namespace pith
