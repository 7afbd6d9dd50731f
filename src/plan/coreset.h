#pragma once
// Express's machine (seed 004, Alg. 1-3): how many rows stand where after n rows, and what the next
// rows cause. Nothing here looks at a row's contents, so all heads share one state.
//
// Rows of a body lie in stream order: coreset | level J-1 | ... | level 0 | the unfinished
// stratum's pick. A level is therefore always the tail of the body when it is halved.

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "plan/rule.h"

namespace pith {

inline constexpr uint32_t kExpressLevels = 16;
/// Random numbers of strata. A row is the first of a pair once for each weight it can have, so that
/// the tag of a halving is log2 of the rows' weight before.
inline constexpr uint32_t kStratumTag = 255;

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

/// Where a stream stands. Trivially copyable.
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

/// Where the stream stands `n` rows later. `emit(step)` hears what is done to the body: kMove of
/// rows that stay as they are, kPick, kHalve, in this order of events.
template <class Emit>
void advance(ExpressState& state, const ExpressShape& shape, uint64_t n, Emit&& emit) {
  const auto halve = [&](uint32_t first, uint32_t rows, uint64_t weight) {
    emit(Step{.op = Op::kHalve,
              .rows = rows,
              .first = first,
              .tag = static_cast<uint32_t>(std::countr_zero(weight)),
              .weight = 2 * weight});
  };
  for (uint64_t taken = 0; n > 0; n -= taken, state.seen += taken) {
    // The coreset is thinned when a row comes for which there is no room, so n = s is still exact.
    if (state.coreset == shape.target)
      for (int twice = 0; twice < 2; ++twice) {
        halve(0, state.coreset, state.tau);
        state.tau *= 2;
        state.coreset /= 2;
      }
    if (state.tau == 1) {
      taken = std::min<uint64_t>(n, shape.target - state.coreset);
      emit(Step{.op = Op::kMove, .rows = static_cast<uint32_t>(taken)});
      state.coreset += static_cast<uint32_t>(taken);
      continue;
    }
    const uint64_t ratio = shape.ratio(state.tau), size = state.tau / ratio;
    const auto last = static_cast<uint32_t>(std::countr_zero(ratio));  // J
    const auto bucket = static_cast<uint32_t>(shape.target / ratio);   // B_0
    const uint32_t full = last > 0 ? bucket : shape.quarter();         // of level 0
    taken = std::min(n, (full - state.levels[0]) * size - state.stratum);
    emit(Step{.op = Op::kPick,
              .rows = static_cast<uint32_t>(taken),
              .first = static_cast<uint32_t>(state.stratum),
              .tag = kStratumTag,
              .size = size});
    state.levels[0] += static_cast<uint32_t>((state.stratum + taken) / size);
    state.stratum = (state.stratum + taken) % size;
    if (state.levels[0] != full) continue;
    uint64_t weight = size;
    for (uint32_t l = 0; l < last && state.levels[l] == bucket << l; ++l, weight *= 2) {
      halve(static_cast<uint32_t>(state.rows()) - state.levels[l], state.levels[l], weight);
      state.levels[l + 1] += state.levels[l] / 2;
      state.levels[l] = 0;
    }
    if (state.levels[last] != shape.quarter()) continue;
    state.coreset += state.levels[last];
    state.levels[last] = 0;
  }
}
/// The same, for those who count alone.
inline void advance(ExpressState& state, const ExpressShape& shape, uint64_t n) {
  advance(state, shape, n, [](const Step&) {});
}

class KeepCoreset final : public Rule {
 public:
  explicit KeepCoreset(const ExpressShape& shape) : shape_(shape) {}
  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const override;
  size_t most_rows(size_t n) const override { return shape_.most(n); }

  static ExpressState load(const PlanState& state);

 private:
  static void save(const ExpressState& coreset, PlanState& state);

  ExpressShape shape_;
};

}  // namespace pith
