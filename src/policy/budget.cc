#include "policy/budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "pith/error.h"
#include "plan/best_rule.h"

namespace pith {
namespace {

constexpr double kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

struct Suffix {
  std::string_view name;
  Budget::Unit unit;
  double factor;
};
constexpr Suffix kSuffixes[] = {
    {"%", Budget::Unit::kPercent, 1},    {"KiB", Budget::Unit::kBytes, kKiB},
    {"MiB", Budget::Unit::kBytes, kMiB}, {"GiB", Budget::Unit::kBytes, kGiB},
    {"kB", Budget::Unit::kBytes, 1e3},   {"KB", Budget::Unit::kBytes, 1e3},
    {"MB", Budget::Unit::kBytes, 1e6},   {"GB", Budget::Unit::kBytes, 1e9},
    {"", Budget::Unit::kRows, 1}};

bool parse_number(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(out);
}

}  // namespace

Budget Budget::parse(std::string_view text) {
  for (const Suffix& s : kSuffixes) {
    if (!text.ends_with(s.name)) continue;
    Budget b;
    b.unit = s.unit;
    const bool parsed = parse_number(text.substr(0, text.size() - s.name.size()), b.value);
    const bool whole = s.unit != Unit::kRows || b.value == std::floor(b.value);
    const bool in_range =
        b.value > 0 && (s.unit != Unit::kPercent || b.value <= 100) && b.value < 0x1p50;
    if (!parsed || !whole || !in_range) break;
    b.value *= s.factor;
    return b;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is not a budget; use rows per KV head (1024), a share of the "
                          "context (25%, at most 100%) or bytes of the whole cache (16MiB, 16MB), "
                          "more than 0",
                          text));
}

std::string Budget::text() const {
  if (unit == Unit::kPercent) return fmt::format("{}%", value);
  if (unit == Unit::kRows) return fmt::format("{:.0f}", value);
  const auto& s = value >= kGiB ? kSuffixes[3] : value >= kMiB ? kSuffixes[2] : kSuffixes[1];
  return fmt::format("{}{}", value / s.factor, s.name);
}

Turnover within(size_t rows, std::optional<size_t> come) {
  const size_t turn = come.value_or(turn_of(rows));
  if (turn < rows) return {rows - turn, turn};
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a budget of {} rows is taken by the {} that come until the next "
                          "selection; raise the budget{}",
                          rows, turn, come ? ", or lower the interval" : " to 2 rows or more"));
}

size_t BudgetSite::rows(const Budget& budget, std::string_view what, size_t least) const {
  const std::string before = what.empty() ? "" : fmt::format("{}: ", what);
  if (budget.unit == Budget::Unit::kBytes) return rows_in(budget.value, before);
  if (budget.unit == Budget::Unit::kRows) return static_cast<size_t>(budget.value);
  const size_t whole = percent_of > 0 ? percent_of : context;
  return std::max(static_cast<size_t>(budget.value / 100 * static_cast<double>(whole)), least);
}

size_t BudgetSite::rows_in(double all, const std::string& before) const {
  const double share = all / static_cast<double>(caches);
  size_t fits = 0, too_many = size_t{1} << 30;
  if (bytes(1) > share)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}a budget of {:.2f} MiB holds no body row: sink and window of {} KV heads "
                    "take {:.2f} MiB, and with a row of each {:.2f} MiB; raise the budget or make "
                    "sink and window smaller",
                    before, all / kMiB, caches, bytes(0) * static_cast<double>(caches) / kMiB,
                    bytes(1) * static_cast<double>(caches) / kMiB));
  while (too_many - fits > 1) {
    const size_t middle = fits + (too_many - fits) / 2;
    (bytes(middle) <= share ? fits : too_many) = middle;
  }
  return fits;
}

}  // namespace pith
