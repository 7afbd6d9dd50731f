#pragma once
// The rows that one KV head holds, and ranges of tokens.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// The sums of attention that a row counts in. BalanceKV's streaming form keeps rows for one sum
/// only: weighted values (numerator) or normalisation (denominator).
enum class Role : uint8_t { kBoth, kNumerator, kDenominator };

/// The rows of one KV head. A position occurs twice if one row is held for each sum.
struct HeadRows {
  std::vector<int64_t> positions = {};  ///< true positions, ascending
  std::vector<float> log_weights = {};  ///< same order; ln of the number of rows it stands for
  std::vector<Role> roles = {};         ///< same order
};

/// Tokens [first, last) of a conversation.
struct TokenRange {
  int64_t first = 0, last = 0;
  bool operator==(const TokenRange&) const = default;
};

/// "0:120,500:620" is tokens 0 to 119 and 500 to 619; "" is none. Throws kInvalidArgument.
std::vector<TokenRange> parse_ranges(std::string_view text);
std::string to_string(const std::vector<TokenRange>& ranges);

}  // namespace pith

#pragma GCC visibility pop
