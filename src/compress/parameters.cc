#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cmath>

#include "compress/registry.h"
#include "pith/error.h"

namespace pith {
namespace {

bool parse_number(std::string_view text, double& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc() && end == text.data() + text.size() && std::isfinite(out);
}

}  // namespace

Budget Budget::parse(std::string_view text) {
  struct Suffix {
    std::string_view name;
    Unit unit;
    double factor;
  };
  static constexpr Suffix kSuffixes[] = {{"%", Unit::kPercent, 1},
                                         {"KiB", Unit::kBytes, 1024.0},
                                         {"MiB", Unit::kBytes, 1024.0 * 1024},
                                         {"GiB", Unit::kBytes, 1024.0 * 1024 * 1024},
                                         {"", Unit::kRows, 1}};
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
                          "context (25%, at most 100%) or bytes of the whole cache (16MiB), more "
                          "than 0",
                          text));
}

size_t BudgetSite::rows(const Budget& budget) const {
  double rows = budget.value;
  if (budget.unit == Budget::Unit::kPercent)
    rows = budget.value / 100 * static_cast<double>(context);
  if (budget.unit == Budget::Unit::kBytes)
    rows = (budget.value / static_cast<double>(caches) - exact_bytes) / row_bytes;
  if (rows >= 1) return static_cast<size_t>(rows);
  if (budget.unit == Budget::Unit::kPercent)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{}% of a context of {} tokens is less than one row", budget.value, context));
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("a budget of {:.2f} MiB holds no body row: sink and window of {} KV heads "
                  "take {:.2f} MiB, and a row of each {:.4f} MiB; raise the budget or make "
                  "sink and window smaller",
                  budget.value / 1048576, caches,
                  exact_bytes * static_cast<double>(caches) / 1048576,
                  row_bytes * static_cast<double>(caches) / 1048576));
}

Parameters::Parameters(const MethodInfo& method, const PolicyPart& part)
    : method_(method), part_(part) {
  for (const auto& [name, value] : part.parameters) {
    bool known = false;
    for (const ParameterInfo& p : method.parameters) known |= p.name == name;
    if (known) continue;
    std::vector<std::string> names;
    for (const ParameterInfo& p : method.parameters) names.push_back(p.name);
    throw Error(ErrorCode::kInvalidArgument,
                names.empty()
                    ? fmt::format("'{}' has no parameter '{}'; it takes none", method.name, name)
                    : fmt::format("'{}' has no parameter '{}'; it takes {}", method.name, name,
                                  fmt::join(names, ", ")));
  }
}

const std::string& Parameters::text(const std::string& name) const {
  if (const auto it = part_.parameters.find(name); it != part_.parameters.end()) return it->second;
  for (const ParameterInfo& p : method_.parameters)
    if (p.name == name) return p.default_value;
  throw Error(ErrorCode::kInternal, method_.name + " asks for an undeclared parameter " + name);
}

void Parameters::refuse(const std::string& name, const std::string& wanted) const {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: {}={} is not {}", method_.name, name, text(name), wanted));
}

double Parameters::number(const std::string& name, double least, double most) const {
  double value = 0;
  if (!parse_number(text(name), value) || value < least || value > most)
    refuse(name, fmt::format("a number from {} to {}", least, most));
  return value;
}

size_t Parameters::count(const std::string& name, size_t least) const {
  double value = 0;
  if (!parse_number(text(name), value) || value != std::floor(value) ||
      value < static_cast<double>(least) || value > 0x1p50)
    refuse(name, fmt::format("a whole number of at least {}", least));
  return static_cast<size_t>(value);
}

bool Parameters::flag(const std::string& name) const {
  return choice(name, {"true", "false"}) == "true";
}

std::string Parameters::choice(const std::string& name,
                               std::initializer_list<std::string_view> known) const {
  for (std::string_view k : known)
    if (text(name) == k) return text(name);
  refuse(name, fmt::format("one of {}", fmt::join(known, ", ")));
}

size_t Parameters::rows(const std::string& name, const BudgetSite& site) const {
  try {
    return site.rows(Budget::parse(text(name)));
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("{}: {}: {}", method_.name, name, e.what()));
  }
}

}  // namespace pith
