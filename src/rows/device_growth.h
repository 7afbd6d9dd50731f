#pragma once
// How the GPU's stores grow, in units of their own: rows, blocks of codes, numbers beside rows. By
// an eighth of what there is, so that slack stays small. Stores ask for their room by it, and
// estimates before there is any.

#include <algorithm>
#include <cstddef>

namespace pith {

struct DeviceGrowth {
  size_t piece = 1;  ///< room is whole pieces
  size_t least = 0;  ///< room for so many at once, if for any
  size_t most = 0;   ///< where growth by eighths ends; 0: unknown

  /// Room for `needed`, where there is room for fewer, `capacity`.
  constexpr size_t from(size_t capacity, size_t needed) const {
    size_t room = std::max({needed, capacity + capacity / 8, least});
    if (needed <= most) room = std::min(room, most);
    return (room + piece - 1) / piece * piece;
  }
  /// The most room of a store that came to need `needed`, however it grew.
  constexpr size_t most_for(size_t needed) const { return needed == 0 ? 0 : from(needed, needed); }
};

inline constexpr size_t kDevicePiece = 64;  // dense rows, and numbers beside rows
inline constexpr size_t kDeviceBlocks = 4;  // of codes, the first time

/// Of a window of at most `rows` rows. Twice as much room makes its moves rare, where that is
/// little beside the rows behind it.
constexpr DeviceGrowth device_window(size_t rows, bool roomy) {
  const size_t twice = (2 * rows + 31) / 32 * 32;
  return roomy ? DeviceGrowth{kDevicePiece, twice, twice}
               : DeviceGrowth{kDevicePiece, 0, rows + rows / 15 + 64};
}

}  // namespace pith
