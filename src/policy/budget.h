#pragma once
// A budget: how much of the cache a selector may keep, as users write it, and as rows.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace pith {

/// A number of rows, a share of what is read, or bytes of the whole cache.
struct Budget {
  enum class Unit : uint8_t { kRows, kPercent, kBytes };
  double value = 0;
  Unit unit = Unit::kRows;
  static Budget rows(size_t count) { return {static_cast<double>(count), Unit::kRows}; }
  /// "1024", "25%", "16MiB" (KiB and GiB too). Throws kInvalidArgument; zero is refused.
  static Budget parse(std::string_view text);
  /// A text that parses to the same.
  std::string text() const;
};

/// Rows that stay at a selection, and how many may come until the next.
struct Turnover {
  size_t stay = 0, come = 0;
};
/// That never exceeds `rows`: `come` of them, turn_of(rows) if not given. Throws kInvalidArgument
/// if none would stay.
Turnover within(size_t rows, std::optional<size_t> come);

/// The data that turns a budget into rows.
struct BudgetSite {
  size_t context = 0;     ///< the most tokens there will be
  size_t percent_of = 0;  ///< tokens that per cent are of; 0 = the context
  size_t caches = 1;      ///< layers * KV heads that share a byte budget
  /// The most bytes of one KV head that holds so many body rows, sink, window and all that lies
  /// beside rows included. It rises with the rows.
  std::function<double(size_t rows)> bytes;
  size_t together = 1;  ///< body rows that share something in their codes
  /// Of bytes: the most rows that fit. Throws kInvalidArgument where that is less than one row;
  /// `what` begins the message. A share is never refused for being small: until the text has grown
  /// it is `least` rows, the fewest that its taker can work with.
  size_t rows(const Budget& budget, std::string_view what = "", size_t least = 1) const;

 private:
  size_t rows_in(double all, const std::string& before) const;
};

}  // namespace pith
