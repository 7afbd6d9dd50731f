#pragma once
// When rows move: sink first, then window, then whole blocks into the body. The moves depend only
// on how many rows have come, never on how they were cut into chunks.

#include <algorithm>
#include <cstddef>

namespace pith {

/// Sizes of one head group, in rows. Block >= 1.
struct ScheduleShape {
  size_t sink = 0, window = 0, block = 1;
  /// With neither a window nor blocks, rows go straight to the body.
  bool straight() const { return window == 0 && block == 1; }
  size_t ring_capacity() const { return straight() ? 0 : window + block; }
};

/// How many of `n` rows lie where.
struct Occupancy {
  size_t sink = 0, body = 0, window = 0;
};

constexpr Occupancy occupancy(const ScheduleShape& s, size_t n) {
  Occupancy o;
  o.sink = std::min(n, s.sink);
  const size_t rest = n - o.sink;
  if (rest > s.window) o.body = (rest - s.window) / s.block * s.block;
  o.window = rest - o.body;
  return o;
}

/// One step of an append: take `to_sink` new rows into the sink, or pass `straight` new rows to the
/// body, or move `to_body` rows from the ring's front into the body and then `to_ring` new rows
/// into the ring (in the other order if the ring does not hold `to_body` rows yet).
struct Move {
  size_t to_sink = 0, straight = 0, to_body = 0, to_ring = 0;
  size_t taken() const { return to_sink + straight + to_ring; }
};

/// The next move when `n` rows have come and `incoming` > 0 wait. `most` bounds the rows moved to
/// the body at once (staging); it is rounded up to a block.
constexpr Move next_move(const ScheduleShape& s, size_t n, size_t incoming, size_t most) {
  Move m;
  if (n < s.sink) {
    m.to_sink = std::min(incoming, s.sink - n);
    return m;
  }
  if (s.straight()) {
    m.straight = std::min(incoming, most);
    return m;
  }
  const size_t held = occupancy(s, n).window;
  const size_t batch = std::max(most / s.block, size_t{1}) * s.block;
  const size_t room = s.window + s.block - 1 - held;  // before a block must go
  if (room > 0) {
    m.to_ring = std::min(incoming, room);
  } else if (held < s.block) {  // no window: the next row completes a block
    m.to_ring = 1;
    m.to_body = s.block;
  } else {
    const size_t want = (incoming + s.block - 1) / s.block * s.block;
    m.to_body = std::min({want, batch, held / s.block * s.block});
    m.to_ring = std::min(incoming, m.to_body);
  }
  return m;
}

}  // namespace pith
