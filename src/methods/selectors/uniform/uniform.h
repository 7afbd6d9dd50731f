#pragma once
// The options of uniform.

#include "methods/heavy.h"
#include "policy/registry.h"

namespace pith {

struct UniformOptions {
  std::optional<double> rate;  ///< unset: 1/4, or what the budget asks for
  std::optional<Budget> budget;
  bool weights = true;
  HeavyOptions heavy;

  double drawn() const { return rate.value_or(0.25); }
  size_t rows(const BudgetSite& site) const { return heavy.others(*budget, site, "uniform"); }
  Fields fields();
  /// Throws kInvalidArgument.
  void check(const std::string& method) const;
};

}  // namespace pith
