#pragma once
// How much of the cache a selector may keep, as users say it, and as rows.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace pith {

/// A number of rows, a share of the context, or bytes of the whole cache.
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

/// What turns a budget into rows.
struct BudgetSite {
  size_t context = 0;      ///< tokens of the session
  size_t caches = 1;       ///< layers * KV heads that share a byte budget
  double row_bytes = 0;    ///< of one body row of one KV head, side arrays included
  double exact_bytes = 0;  ///< sink and window of one KV head when full
  /// Throws kInvalidArgument where that is less than one row; `what` begins the message.
  size_t rows(const Budget& budget, std::string_view what = "") const;
};

}  // namespace pith
