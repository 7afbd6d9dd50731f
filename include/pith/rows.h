#pragma once
// What is held of one KV head, and ranges of tokens.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// What a row counts for. BalanceKV's streaming form keeps rows for either sum of the softmax
/// alone: weighted values (numerator) or normalisation (denominator).
enum class Role : uint8_t { kBoth, kNumerator, kDenominator };

/// What is held of one KV head. A position is named twice if a row is held for each sum apart.
struct HeadRows {
  std::vector<int64_t> positions = {};  ///< true positions, ascending
  std::vector<float> log_weights = {};  ///< same order; 0 = counts once
  std::vector<Role> roles = {};         ///< same order
};

/// Tokens [first, last) of a conversation.
struct TokenRange {
  int64_t first = 0, last = 0;
  bool operator==(const TokenRange&) const = default;
};

/// "0:120,500:620": tokens 0 to 119 and 500 to 619. Empty text: none. Throws kInvalidArgument.
std::vector<TokenRange> parse_ranges(std::string_view text);
std::string to_string(const std::vector<TokenRange>& ranges);

}  // namespace pith

#pragma GCC visibility pop
