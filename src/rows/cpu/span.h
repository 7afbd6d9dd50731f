#pragma once
// A run of stored rows as attention sees it.

#include "pith/rows.h"
#include "rows/cpu/coded_rows.h"

namespace pith {

/// A run of stored rows [first, first + count) of one KV head. Arrays are indexed by row number
/// from 0 of `keys`, not from `first`.
struct Span {
  const CodedRows* keys = nullptr;
  const CodedRows* values = nullptr;  ///< may be null for Role::kDenominator
  size_t first = 0, count = 0;
  Role role = Role::kBoth;
  float log_weight = 0;                 ///< added to every score of the span
  const float* log_weights = nullptr;   ///< [rows], added too, if not null
  const uint32_t* positions = nullptr;  ///< [rows] true positions; null: contiguous
  int64_t first_position = 0;           ///< of row `first`, when positions is null
  bool keys_before_rope = false;        ///< rotate keys to their position when read
  int64_t query_shift = 0;              ///< rotate queries by this many positions
  float* mass = nullptr;                ///< [rows] += attention probabilities, if asked for
};

}  // namespace pith
