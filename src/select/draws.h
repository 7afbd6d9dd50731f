#pragma once
// A row's random numbers, in every selector and on every device: functions of the
// stream of its head, its position and the number of the draw.

#include <cstdint>

#include "core/philox.h"

namespace pith {

/// Whether a sample by rate keeps the row.
PITH_BOTH_SIDES constexpr bool stays_by_rate(const Philox& random, int64_t position, double rate) {
  return random.uniform(static_cast<uint64_t>(position)) < rate;
}

/// Reservoir sampling of one: whether row `nth` (from 1) of a stratum replaces the pick, with
/// probability 1 / nth.
PITH_BOTH_SIDES constexpr bool becomes_pick(const Philox& random, int64_t position, uint32_t tag,
                                            uint64_t nth) {
  return nth == 1 || random.word64(static_cast<uint64_t>(position), tag) < UINT64_MAX / nth;
}

/// Random numbers of one halving. A row of the run draws at (its position, tag): the same rows make
/// the same choice whenever and wherever they are halved. The run's own are its first row's.
struct HalvingRandom {
  Philox source;
  uint32_t tag = 0;  ///< distinct for every halving that a row can take part in

  /// The walk's own, of each row or pair.
  PITH_BOTH_SIDES constexpr float walk(int64_t position) const {
    return source.uniform(static_cast<uint64_t>(position), tag);
  }
  /// The run's coin, independent of the walk's.
  PITH_BOTH_SIDES constexpr bool coin(int64_t first) const {
    return source.words(static_cast<uint64_t>(first), tag)[1] >> 31;
  }
  /// The order in which rows are added to a side that is too small.
  PITH_BOTH_SIDES constexpr uint32_t order(int64_t position) const {
    return source.words(static_cast<uint64_t>(position), tag)[2];
  }
  /// The side that stays, where a coin says it.
  PITH_BOTH_SIDES constexpr bool side(int64_t first) const {
    return source.words(static_cast<uint64_t>(first), tag)[3] >> 31;
  }
};

}  // namespace pith
