#pragma once
// The registry row of BUZZ, and its sizes.

#include <cstddef>

#include "compress/registry.h"

namespace pith {

/// Theorem 3.1: the threshold that makes the rows after an eviction settle at the window's size.
/// T / w = (s^2 + 1) / (s + 1) for odd s, s - 1 for even s; to the nearest row.
size_t buzz_threshold(size_t window, size_t stride);

struct BuzzOptions {
  size_t stride = 0, threshold = 0;
  bool logn = false, weights = false, swap = false, localmax = true;
  size_t new_stride() const { return swap ? (stride + 1) / 2 : stride; }
  size_t old_stride() const { return swap ? stride : (stride + 1) / 2; }
};
/// Throws kInvalidArgument.
BuzzOptions buzz_options(const SelectorPlace& place);

SelectorRow buzz_row();

}  // namespace pith
