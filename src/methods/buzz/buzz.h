#pragma once
// The registry row of BUZZ, and its sizes.

#include <cstddef>

#include "compress/registry.h"

namespace pith {

/// Theorem 3.1: the threshold that makes the rows after an eviction settle at the window's size.
/// T / w = (s^2 + 1) / (s + 1) for odd s, s - 1 for even s; to the nearest row.
size_t buzz_threshold(size_t window, size_t stride);

SelectorRow buzz_row();

}  // namespace pith
