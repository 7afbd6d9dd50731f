#pragma once
// Arrays of records beside coded rows follow the rows: same order, same compaction, and memory that
// is no longer needed goes back.

#include <algorithm>
#include <cstring>
#include <span>

#include "core/allocation.h"
#include "core/archive.h"

namespace pith {

/// After rows went.
template <class T>
void give_back(Array<T>& array) {
  if (gives_back(array.capacity_bytes(), array.size() * sizeof(T))) array.shrink_to_fit();
}

/// Moves records of `size` numbers so that those named, ascending, come first; drops the others.
/// `more` numbers stay readable past the last.
template <class T>
void keep_records(Array<T>& array, size_t size, std::span<const uint32_t> kept, size_t more = 0) {
  for (size_t to = 0; to < kept.size(); ++to)
    if (kept[to] != to && size > 0)
      std::memmove(array.data() + to * size, array.data() + kept[to] * size, size * sizeof(T));
  array.resize(kept.size() * size + more);
  give_back(array);
}

// Groups of neighbouring rows that share a record (scales, a centre, channels): `firsts` [groups]
// says where each begins among `rows` coded rows.

/// The group that holds a row; 0 if there are no groups.
inline size_t group_of(const Array<uint32_t>& firsts, size_t row) {
  const uint32_t* begin = firsts.data();
  const uint32_t* after =
      std::upper_bound(begin, begin + firsts.size(), static_cast<uint32_t>(row));
  return after == begin ? 0 : static_cast<size_t>(after - begin) - 1;
}

inline size_t group_end(const Array<uint32_t>& firsts, size_t group, size_t rows) {
  return group + 1 < firsts.size() ? firsts[group + 1] : rows;
}

/// Rows named, ascending, stay, and with them their groups' records of `size` numbers; groups whose
/// last row goes return theirs. Returns how many of `kept` are coded rows.
template <class T>
size_t keep_groups(Array<uint32_t>& firsts, Array<T>& records, size_t size,
                   std::span<const uint32_t> kept, size_t rows) {
  size_t to = 0, groups = 0;
  for (size_t g = 0; g < firsts.size(); ++g) {
    const size_t end = group_end(firsts, g, rows), first = to;
    while (to < kept.size() && kept[to] < end) ++to;
    if (to == first) continue;
    if (groups != g && size > 0)
      std::memmove(records.data() + groups * size, records.data() + g * size, size * sizeof(T));
    firsts[groups++] = static_cast<uint32_t>(first);
  }
  firsts.resize(groups);
  records.resize(groups * size);
  give_back(records);
  return to;
}

/// Where the groups of `rows` coded rows begin; returns how many groups there are.
inline size_t archive_groups(Archive& a, Array<uint32_t>& firsts, size_t rows) {
  size_t groups = firsts.size();
  a.number(groups, rows, "more groups than rows");
  a.need((groups == 0) == (rows == 0), "rows without a group");
  a.ascending(firsts, groups, rows, true);
  return groups;
}

}  // namespace pith
