#pragma once
// The registry row of BUZZ, and its sizes.

#include <cstddef>

#include "plan/cells_rule.h"
#include "policy/registry.h"

namespace pith {

/// Theorem 3.1: the threshold that makes the rows after an eviction settle at the window's size.
/// T / w = (s^2 + 1) / (s + 1) for odd s, s - 1 for even s; to the nearest row.
size_t buzz_threshold(size_t window, size_t stride);

struct BuzzOptions {
  size_t stride = 5;
  std::optional<Budget> rows;
  bool logn = false, weights = false, swap = false, localmax = true;
  bool by_key = false, whole = false;
  Fields fields();
};

/// The same with the threshold as rows.
struct BuzzRule {
  BuzzOptions options;
  size_t threshold = 0;
  Cells cells() const { return {threshold, new_stride(), old_stride(), each(), options.whole}; }
  size_t each() const { return options.by_key ? 2 : 1; }
  size_t new_stride() const { return options.swap ? fewer() : options.stride; }
  size_t old_stride() const { return options.swap ? options.stride : fewer(); }

 private:
  size_t fewer() const { return (options.stride + 1) / 2; }
};
/// Throws kInvalidArgument.
BuzzRule buzz_rule(const BuzzOptions& options, const BudgetSite& budget, size_t window);

}  // namespace pith
