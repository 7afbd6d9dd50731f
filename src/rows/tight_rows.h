#pragma once
// Rows of levels whose scale has 8 bits, on every device: an f16 without its sign and its seven
// lowest bits. It is up to 6% off, and the thresholds between levels are moved together until
// <x, decoded x> is |x|^2 again (docs/decisions/0260).

#include <algorithm>
#include <cstdint>

#include "core/both_sides.h"
#include "core/philox.h"

namespace pith {

inline constexpr uint8_t kLargestTightScale = 0xF7;  ///< the next one is infinite
/// The scale's bits as an f16, and the nearest scale to an f16 that is not negative.
PITH_BOTH_SIDES constexpr uint16_t half_of_tight(uint8_t scale) {
  return static_cast<uint16_t>(scale << 7);
}
PITH_BOTH_SIDES constexpr uint8_t tight_of_half(uint16_t half) {
  const int nearest = (half + 0x40) >> 7;
  return nearest < kLargestTightScale ? static_cast<uint8_t>(nearest) : kLargestTightScale;
}

// How far thresholds move, and how often the way there is halved.
inline constexpr float kNearestThresholds = 0.8f, kFarthestThresholds = 1.25f;
inline constexpr int kThresholdHalvings = 12;

/// Whether a random turn of a layer's rows changes the sign of a channel before the transform.
inline bool turn_flips(uint64_t seed, uint32_t layer, size_t channel) {
  constexpr uint32_t kSigns = 0x5153;
  return (Philox(seed, layer, kSigns).word64(channel, 0) & 1) == 0;
}

}  // namespace pith
