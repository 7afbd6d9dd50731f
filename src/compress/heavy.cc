#include "compress/heavy.h"

#include <fmt/format.h>

#include <utility>

#include "pith/error.h"

namespace pith {

Fields HeavyOptions::fields() {
  return {rows("heavy", heavy,
               "body rows kept beside the others, with weight 1, for their recent attention mass; "
               "none by default"),
          whole("heavy_interval", interval, {.least = 1},
                "rows by which the heavy may outgrow their budget; one of bytes counts them")
              .unset("512")
              .when(heavy.has_value()),
          whole("heavy_queries", queries, {.least = 1}, "last queries whose attention counts")
              .when(heavy.has_value())};
}

std::optional<HeavySizes> HeavyOptions::sizes(const BudgetSite& site) const {
  if (!heavy) return std::nullopt;
  const size_t rows = site.rows(*heavy, "heavy");
  if (heavy->unit != Budget::Unit::kBytes) return HeavySizes{rows, interval.value_or(512), queries};
  const Turnover turnover = within(rows, interval);
  return HeavySizes{turnover.stay, turnover.come, queries};
}

size_t HeavyOptions::others(const Budget& all, const BudgetSite& site,
                            std::string_view what) const {
  const size_t rows = site.rows(all, what);
  if (!heavy || all.unit != Budget::Unit::kBytes) return rows;
  const size_t apart = sizes(site)->most();
  if (apart < rows) return rows - apart;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {} hold {} rows of each KV head, and heavy rows take {} of them; "
                          "raise the budget or lower heavy",
                          what, all.text(), rows, apart));
}

HeavyOptions HeavyOptions::at(const BudgetSite& site) const {
  HeavyOptions o = *this;
  if (const auto rows = sizes(site)) {
    o.heavy = Budget::rows(rows->budget);
    o.interval = rows->interval;
  }
  return o;
}

SelectorParts with_heavy(SelectorParts inner, const std::optional<HeavySizes>& sizes) {
  if (sizes) inner.rule = std::make_shared<KeepHeavy>(*sizes, std::move(inner.rule));
  return inner;
}

}  // namespace pith
