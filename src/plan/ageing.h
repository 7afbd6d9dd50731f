#pragma once
// When rows that are no longer among the newest are coded anew (the ladder's two steps): how many
// are old depends on how many there are, not on how they came.

#include <cstddef>

namespace pith {

struct Ageing {
  size_t young = 0;  ///< rows that stay young, and up to `step` - 1 more
  size_t step = 1;   ///< rows that age together

  /// How many of `rows` young ones age now, the oldest.
  constexpr size_t due(size_t rows) const {
    return rows < young + step ? 0 : (rows - young) / step * step;
  }
};

}  // namespace pith
