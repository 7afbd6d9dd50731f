#include "methods/heavy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "pith/error.h"

namespace pith {
namespace {

constexpr size_t kGroup = 32, kMostAtOnce = 512;  // rows

/// Rows that leave at once if nobody says how many: about an eighth, in whole groups of what codecs
/// code together, `together` or 32; of few rows, whose quarter is no 32 or whose half is no group,
/// turn_of.
std::optional<size_t> groups_of(size_t rows, size_t together) {
  const size_t group = together > kMostAtOnce ? kGroup : std::lcm(kGroup, together);
  if (rows < std::max(4 * kGroup, 2 * group)) return std::nullopt;
  return std::clamp((rows / 8 + group / 2) / group * group, group, kMostAtOnce);
}

}  // namespace

Fields HeavyOptions::fields(const std::string& unset) {
  Field how_many = rows("heavy", heavy,
                        "the most body rows kept beside the others, with weight 1, for their "
                        "recent attention mass or their keys; 0: none; by default " +
                            unset);
  how_many.accepts += ", or 0";
  how_many.read = [this, read = how_many.read](std::string_view text) {
    none = text == "0";
    if (none) heavy.reset();
    return none || read(text);
  };
  how_many.write = [this, write = how_many.write] { return none && by_default ? "0" : write(); };
  return {
      std::move(how_many),
      number("heavy_keys", keys, {0, 1},
             "share of the heavy rows that stay because their keys are unlike all others "
             "(keydiff's measure), not for their attention")
          .when(heavy || open()),
      whole("heavy_interval", interval, {.least = 1},
            "rows by which the heavy may outgrow a number of rows before the lightest go (bytes "
            "count them); unset, they never do: an eighth of them makes room at once")
          .when(heavy || open()),
      whole("heavy_queries", queries, {.least = 1}, "last queries whose attention counts")
          .when((heavy || open()) && keys < 1)};
}

std::optional<HeavySizes> HeavyOptions::sizes(const BudgetSite& site) const {
  if (!heavy) return std::nullopt;
  const size_t rows = site.rows(*heavy, "heavy", 2);
  HeavySizes sizes{rows, interval.value_or(0), queries};
  // As with scores (docs/decisions/0095): an interval that is given comes on top of rows.
  if (!interval || heavy->unit == Budget::Unit::kBytes) {
    const Turnover turnover = within(rows, interval ? interval : groups_of(rows, site.together));
    sizes.budget = turnover.stay, sizes.interval = turnover.come;
  }
  sizes.by_key = static_cast<size_t>(std::lround(keys * static_cast<double>(sizes.budget)));
  return sizes;
}

size_t HeavyOptions::others(const Budget& all, const BudgetSite& site, std::string_view what,
                            size_t least) const {
  const size_t rows = site.rows(all, what, least);
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

ResolvedSelector with_heavy(ResolvedSelector inner, const std::optional<HeavySizes>& sizes) {
  if (!sizes) return inner;
  inner.rule = std::make_shared<KeepHeavy>(*sizes, std::move(inner.rule));
  inner.needs.mass = sizes->by_key < sizes->budget;
  inner.needs.evicts = sizes->interval;
  inner.needs.stores = 2;
  return inner;
}

}  // namespace pith
