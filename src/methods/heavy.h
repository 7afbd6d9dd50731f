#pragma once
// Heavy rows apart: the rows with the most recent attention mass, and those whose keys are unlike
// all others, stay as they are, with weight 1, and only the rest goes to a sampling selector
// (docs/decisions/0013-heavy-rows.md). The worst error of a sample is to drop or double a row
// that carries much of the attention, now or for a question that is still to come.
//
// Rows enter the heavy store one by one; when it has grown to budget + interval, the `interval`
// lightest go to the inner selector, oldest first. Mass is that of the last `queries` queries:
// older mass says nothing about the next query (0010). Cost per row: one selection over the heavy
// rows every `interval` rows, for keys 4 D operations per heavy row in each, and one number added
// by attend per watched query and row.

#include <optional>

#include "plan/heavy_rule.h"
#include "policy/registry.h"

namespace pith {

/// The options of heavy rows beside a selector's own.
struct HeavyOptions {
  std::optional<Budget> heavy = {};
  bool none = false;                    ///< heavy=0
  bool by_default = false;              ///< heavy rows although `heavy` is unset
  double keys = 0.5;                    ///< share of them that stay for their keys
  std::optional<size_t> interval = {};  ///< unset: see sizes()
  size_t queries = 256;

  /// `unset`: the meaning of an unset `heavy`, for the help.
  Fields fields(const std::string& unset);
  /// True if there are heavy rows by default: the selector decides how many.
  bool open() const { return by_default && !heavy && !none; }
  /// Empty without heavy rows. Without an interval there are never more than given, and about an
  /// eighth of them is evicted at once.
  std::optional<HeavySizes> sizes(const BudgetSite& site) const;
  /// The part of a budget for all that is left to the others: bytes count heavy rows too, of a
  /// share `least` rows at least. Throws kInvalidArgument if nothing.
  size_t others(const Budget& all, const BudgetSite& site, std::string_view what,
                size_t least = 1) const;
  /// With budgets as rows.
  HeavyOptions at(const BudgetSite& site) const;
  /// Bytes beside each row: the mass.
  double side_bytes() const { return (heavy || open()) && keys < 1 ? sizeof(float) : 0; }
};
/// `inner` behind heavy rows if there are sizes, else `inner` itself. It must keep to store 0 of
/// its bodies and not care for attention mass or prompt ends; its text names the heavy rows.
ResolvedSelector with_heavy(ResolvedSelector inner, const std::optional<HeavySizes>& sizes);

}  // namespace pith
