#pragma once
// How the GPU's stores grow, in units of their own: rows, blocks of codes, numbers beside rows. By
// an eighth of what there is, so that slack stays small. Stores ask for their room by it, and
// estimates before there is any.

#include <algorithm>
#include <cstddef>

#include "plan/schedule.h"

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
  /// The same where first rows go: the others move up once that gives back a part of what is held.
  constexpr size_t most_with_front(size_t needed) const {
    return needed == 0 ? 0 : from(needed + needed / kFrontPart + 1, needed);
  }
  static constexpr size_t kFrontPart = 16;
};

inline constexpr size_t kDevicePiece = 64;    // dense rows, and numbers beside rows
inline constexpr size_t kDeviceBlocks = 4;    // of codes, the first time
inline constexpr size_t kCodedTogether = 32;  // rows of a block of codes

/// Of dense rows, `most` of them in the end.
constexpr DeviceGrowth device_rows(size_t most = 0) { return {kDevicePiece, 0, most}; }
/// Of blocks of codes of up to `most` rows; 0: unknown.
constexpr size_t device_blocks(size_t rows) { return (rows + kCodedTogether - 1) / kCodedTogether; }
constexpr DeviceGrowth device_codes(size_t most = 0) {
  return {1, kDeviceBlocks, device_blocks(most)};
}

/// The most rows of a window that rows flow through; `waiting`: those that tables are made of.
constexpr size_t device_window_rows(const ScheduleShape& schedule, size_t waiting) {
  return schedule.window + schedule.block + waiting;
}
/// Coders read whole blocks of a run, of which the last may end behind the rows.
constexpr size_t device_run_rows(size_t rows, bool coded) {
  return rows + (coded ? kCodedTogether - 1 : 0);
}
/// Rows of a sample over codes that are dense for good: what waits for its group, and a block more.
constexpr size_t device_sample_rows(size_t group) { return group + kCodedTogether - 1; }
/// Of a window of at most `rows` rows. Twice as much room makes its moves rare, where that is
/// little beside the rows behind it.
constexpr DeviceGrowth device_window(size_t rows, bool roomy) {
  const size_t twice = (2 * rows + 31) / 32 * 32;
  return roomy ? DeviceGrowth{kDevicePiece, twice, twice}
               : DeviceGrowth{kDevicePiece, 0, rows + rows / 15 + 64};
}

}  // namespace pith
