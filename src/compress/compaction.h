#pragma once
// Arrays of records beside coded rows follow the rows: same order, same compaction, and memory that
// is no longer needed goes back.

#include <cstring>
#include <span>

#include "core/memory.h"

namespace pith {

/// Moves records of `size` numbers so that those named, ascending, come first; drops the others.
template <class T>
void keep_records(Array<T>& array, size_t size, std::span<const uint32_t> kept) {
  for (size_t to = 0; to < kept.size(); ++to)
    if (kept[to] != to)
      std::memmove(array.data() + to * size, array.data() + kept[to] * size, size * sizeof(T));
  array.resize(kept.size() * size);
  if (array.capacity_bytes() > kept.size() * size * sizeof(T) * 9 / 8 + 4096) array.shrink_to_fit();
}

}  // namespace pith
