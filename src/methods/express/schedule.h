#pragma once
// Express's sizes (seed 004, Alg. 1-3): how many rows stand where after n rows, and what the next
// row causes. Nothing here looks at a row's contents, so all heads share one schedule.
//
// Rows of a store lie in stream order: coreset | level J-1 | ... | level 0 | the unfinished
// stratum's pick. A level is therefore always the tail of the store when it is halved.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace pith {

inline constexpr uint32_t kExpressLevels = 16;

/// s and g of the paper.
struct ExpressShape {
  uint32_t target = 0;     ///< s, a power of two >= 8
  uint32_t inflation = 1;  ///< g

  /// x = s/4: the rows that a block is thinned to.
  uint32_t quarter() const { return target / 4; }
  /// R for a thinning factor: rows that enter Compress2 for each that leaves it.
  uint64_t ratio(uint64_t tau) const {
    const uint64_t least = uint64_t{1} << (2 * (inflation + 1));
    uint64_t r = 1;
    while (2 * r <= tau && target / (2 * r) >= least) r *= 2;
    return r;
  }
  /// The most rows held after n: 1.5 s (seed eq. 24).
  size_t most(size_t n) const {
    const size_t bound = size_t{target} + target / 2;
    return n < bound ? n : bound;
  }
};

/// Where a stream stands. Trivially copyable: it is the selector's counted state.
struct ExpressState {
  uint64_t seen = 0;
  uint64_t tau = 1;                               ///< weight of the coreset's rows; 1 = exact phase
  uint64_t stratum = 0;                           ///< rows counted of the unfinished stratum
  uint32_t coreset = 0;                           ///< rows of weight tau
  std::array<uint32_t, kExpressLevels> levels{};  ///< rows waiting, level 0 the newest

  uint32_t waiting() const {
    uint32_t n = 0;
    for (uint32_t l : levels) n += l;
    return n;
  }
  size_t rows() const { return coreset + waiting() + (stratum > 0 ? 1 : 0); }
};

/// Where the stream stands `n` rows later.
inline void advance(ExpressState& state, const ExpressShape& shape, uint64_t n) {
  for (uint64_t taken = 0; n > 0; n -= taken, state.seen += taken) {
    if (state.coreset == shape.target) {  // halved twice
      state.coreset /= 4;
      state.tau *= 4;
    }
    if (state.tau == 1) {
      taken = std::min<uint64_t>(n, shape.target - state.coreset);
      state.coreset += static_cast<uint32_t>(taken);
      continue;
    }
    const uint64_t ratio = shape.ratio(state.tau), size = state.tau / ratio;
    taken = std::min(n, size - state.stratum);
    state.stratum += taken;
    if (state.stratum < size) continue;
    state.stratum = 0;
    ++state.levels[0];
    const auto last = static_cast<uint32_t>(std::countr_zero(ratio));  // J
    const auto bucket = static_cast<uint32_t>(shape.target / ratio);   // B_0
    for (uint32_t l = 0; l < last && state.levels[l] == bucket << l; ++l) {
      state.levels[l + 1] += state.levels[l] / 2;
      state.levels[l] = 0;
    }
    if (state.levels[last] != shape.quarter()) continue;
    state.coreset += state.levels[last];
    state.levels[last] = 0;
  }
}

}  // namespace pith
