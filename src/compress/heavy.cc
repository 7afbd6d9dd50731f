#include "compress/heavy.h"

#include <utility>

namespace pith {

Fields HeavyOptions::fields() {
  return {rows("heavy", heavy,
               "body rows kept beside the others, with weight 1, for their recent attention mass; "
               "none by default"),
          whole("heavy_interval", interval, {.least = 1},
                "rows by which the heavy may outgrow their budget")
              .when(heavy.has_value()),
          whole("heavy_queries", queries, {.least = 1}, "last queries whose attention counts")
              .when(heavy.has_value())};
}

std::optional<HeavySizes> HeavyOptions::sizes(const BudgetSite& site) const {
  if (!heavy) return std::nullopt;
  return HeavySizes{site.rows(*heavy, "heavy"), interval, queries};
}

HeavyOptions HeavyOptions::at(const BudgetSite& site) const {
  HeavyOptions o = *this;
  if (heavy) o.heavy = Budget::rows(site.rows(*heavy, "heavy"));
  return o;
}

SelectorParts with_heavy(SelectorParts inner, const std::optional<HeavySizes>& sizes) {
  if (sizes) inner.rule = std::make_shared<KeepHeavy>(*sizes, std::move(inner.rule));
  return inner;
}

}  // namespace pith
