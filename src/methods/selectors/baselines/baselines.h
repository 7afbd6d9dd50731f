#pragma once
// The simplest selectors, which every other one is compared with: exact, local, streaming_llm and
// uniform; and the dense codecs. One registry row each.

#include "methods/heavy.h"
#include "policy/registry.h"

namespace pith {

struct LocalOptions {
  Budget window = Budget::rows(1024);
  Fields fields();
};

struct StreamingOptions {
  enum class Rope : uint8_t { kTrue, kCache };
  Budget window = Budget::rows(1020);
  Rope rope = Rope::kTrue;
  Fields fields();
};

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
