#pragma once
// Heavy rows apart (docs/decisions/0013-heavy-rows.md): rows gather in kHeavy unselected; when
// there are budget + interval, `budget` stay: those with the most recent attention mass, and of the
// others those whose keys are most unlike the rest (0013). The `interval` others go to another
// rule, oldest first.

#include <memory>

#include "plan/rule.h"

namespace pith {

/// In rows and queries.
struct HeavySizes {
  size_t budget = 0, interval = 0, queries = 0;
  size_t by_key = 0;  ///< of the budget: rows that stay for their keys

  /// Rows at which the zone is selected from.
  size_t most() const { return budget + interval; }
  /// True if some rows stay for their attention mass.
  bool by_mass() const { return by_key < budget; }
  /// Its needs in a pass of `tokens` queries when it holds `held` rows.
  MassRequest mass(size_t tokens, size_t held) const;
};

class KeepHeavy final : public Rule {
 public:
  /// `rest` must not care for attention mass.
  KeepHeavy(const HeavySizes& sizes, std::shared_ptr<const Rule> rest)
      : sizes_(sizes), rest_(std::move(rest)) {}

  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const override;
  void end_prompt(PlanState& state, Steps& steps) const override;
  MassRequest mass(const PlanState& state, size_t tokens) const override {
    return sizes_.mass(tokens, state.at(Zone::kHeavy));
  }
  bool by_contents() const override { return rest_->by_contents(); }
  size_t most_rows(size_t n) const override;

 private:
  void split(PlanState& state, Steps& steps) const;

  HeavySizes sizes_;
  std::shared_ptr<const Rule> rest_;
};

}  // namespace pith
