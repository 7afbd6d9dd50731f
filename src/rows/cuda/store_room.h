#pragma once
// The most memory that stores of rows come to take, asked before the rows come: what they grow to
// (rows/device_growth.h), and what is there beside it for a moment.

#include <algorithm>
#include <cstddef>

#include "kernels/cuda/slab.h"

namespace pith::cuda {

/// Bytes.
struct StoreRoom {
  size_t more = 0;     ///< beyond what is held now, once all rows have come
  size_t passing = 0;  ///< beside that, while rows move: one store after the other

  StoreRoom& operator+=(const StoreRoom& o) {
    more += o.more;
    passing = std::max(passing, o.passing);
    return *this;
  }
  /// Of memory that grows from `held` to `bytes`, if that is more: old and new are there at once.
  static StoreRoom growth(size_t held, size_t bytes) {
    return {std::max(held, bytes) - held, std::max(held, bytes)};
  }
  static StoreRoom growth(const Slab& slab, size_t capacity) {
    return growth(slab.allocated_bytes(), slab.bytes_of(capacity));
  }
};

/// Rows of each head that are to come into a store.
struct ComingRows {
  size_t rows = 0;     ///< in all
  size_t at_once = 0;  ///< the most of them
  size_t most = 0;     ///< that are held of a head at any time

  /// The most that are held of a head which has `held`.
  size_t held_with(size_t held) const { return std::max(held, std::min(held + rows, most)); }
};

}  // namespace pith::cuda
