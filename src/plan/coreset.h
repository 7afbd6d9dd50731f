#pragma once
// Express's machine (its paper's Alg. 1-3): how many rows stand where after n rows, and what the
// next rows cause. Nothing here looks at a row's contents, so all heads share one state. The same
// functions serve the plan, the CPU and the kernel that takes rows on the GPU.
//
// Rows of a body lie in stream order: coreset | level J-1 | ... | level 0 | the unfinished
// stratum's pick. A level is therefore always the tail of the body when it is halved.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "core/both_sides.h"
#include "plan/rule.h"

namespace pith {

inline constexpr uint32_t kExpressLevels = 16;
/// Random numbers of strata. A row is the first of a pair once for each weight it can have, so that
/// the tag of a halving is log2 of the rows' weight before.
inline constexpr uint32_t kStratumTag = 255;

/// Of a power of two.
PITH_BOTH_SIDES inline uint32_t log2_of(uint64_t power) {
#ifdef __CUDA_ARCH__
  return static_cast<uint32_t>(__ffsll(static_cast<long long>(power)) - 1);
#else
  return static_cast<uint32_t>(std::countr_zero(power));
#endif
}

/// s and g of the paper.
struct ExpressShape {
  uint32_t target = 0;     ///< s, a power of two >= 8
  uint32_t inflation = 1;  ///< g

  /// x = s/4: the rows that a block is thinned to.
  PITH_BOTH_SIDES uint32_t quarter() const { return target / 4; }
  /// R for a thinning factor: rows that enter Compress2 for each that leaves it. The largest power
  /// of two up to tau for which level 0 has buckets of at least 4^(g+1) rows; or 1.
  PITH_BOTH_SIDES uint64_t ratio(uint64_t tau) const {
    const uint64_t most = uint64_t{target} >> (2 * (inflation + 1));
    const uint64_t r = most < tau ? most : tau;
    return r > 0 ? r : 1;
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
  uint64_t tau = 1;      ///< weight of the coreset's rows, a power of 4; 1 = exact phase
  uint64_t stratum = 0;  ///< rows counted of the unfinished stratum
  uint32_t coreset = 0;  ///< rows of weight tau
  uint32_t levels[kExpressLevels] = {};  ///< rows waiting, level 0 the newest

  /// But for the unfinished stratum's pick.
  PITH_BOTH_SIDES uint32_t settled() const {
    uint32_t n = coreset;
    for (const uint32_t l : levels) n += l;
    return n;
  }
  PITH_BOTH_SIDES uint32_t rows() const { return settled() + (stratum > 0 ? 1 : 0); }
  bool operator==(const ExpressState&) const = default;
};

/// Compress2 (Express, Alg. 2) as blocks go through it while the coreset's rows have a weight.
struct Compress2 {
  uint32_t last;    ///< J: rows of this level join the coreset
  uint32_t bucket;  ///< B_0; level l is halved when it has 2^l times as many
  uint32_t strata;  ///< log2 of the rows of a stratum

  PITH_BOTH_SIDES static Compress2 of(const ExpressShape& shape, uint64_t tau) {
    const uint64_t ratio = shape.ratio(tau);
    const uint32_t last = log2_of(ratio);
    return {last, shape.target >> last, log2_of(tau) - last};
  }
};

/// The lowest level that is to be halved, or J: none is.
PITH_BOTH_SIDES inline uint32_t full_level(const ExpressState& s, const Compress2& c) {
  uint32_t l = 0;
  while (l < c.last && s.levels[l] != c.bucket << l) ++l;
  return l;
}

/// The last level's rows join the coreset when there are s/4.
PITH_BOTH_SIDES inline void join(ExpressState& s, const ExpressShape& shape, uint32_t last) {
  if (s.levels[last] != shape.quarter()) return;
  s.coreset += s.levels[last];
  s.levels[last] = 0;
}

/// The next step of a stream for which `n` rows wait, which it then stands behind: kMove of
/// rows that stay as they are, kPick, or kHalve; of no rows if there is nothing more to do.
PITH_BOTH_SIDES inline Step next_step(ExpressState& s, const ExpressShape& shape, uint64_t n) {
  Step step;
  const auto halve = [&](uint32_t first, uint32_t rows, uint64_t weight) {
    step.op = Op::kHalve;
    step.rows = rows;
    step.first = first;
    step.tag = log2_of(weight);
    step.weight = 2 * weight;
  };
  constexpr uint64_t kMost = 1u << 31;  // the most that a step holds
  if (n > kMost) n = kMost;
  // The coreset is thinned when a row comes for which there is no room, so n = s is still exact;
  // twice, so that between its halvings tau is no power of 4.
  if (log2_of(s.tau) % 2 == 1 || (n > 0 && s.coreset == shape.target)) {
    halve(0, s.coreset, s.tau);
    s.tau *= 2;
    s.coreset /= 2;
    return step;
  }
  if (s.tau == 1) {
    const uint32_t room = shape.target - s.coreset;
    step.rows = n < room ? static_cast<uint32_t>(n) : room;
    s.coreset += step.rows;
    s.seen += step.rows;
    return step;
  }
  const Compress2 c = Compress2::of(shape, s.tau);
  if (const uint32_t l = full_level(s, c); l < c.last) {
    halve(s.settled() - s.levels[l], s.levels[l], uint64_t{1} << (c.strata + l));
    s.levels[l + 1] += s.levels[l] / 2;
    s.levels[l] = 0;
    join(s, shape, c.last);
    return step;
  }
  const uint32_t full = c.last > 0 ? c.bucket : shape.quarter();  // of level 0
  const uint64_t room = (uint64_t{full - s.levels[0]} << c.strata) - s.stratum;
  const uint64_t end = s.stratum + (n < room ? n : room);
  step.op = Op::kPick;
  step.rows = static_cast<uint32_t>(end - s.stratum);
  step.first = static_cast<uint32_t>(s.stratum);
  step.tag = kStratumTag;
  step.size = uint64_t{1} << c.strata;
  s.levels[0] += static_cast<uint32_t>(end >> c.strata);
  s.stratum = end & (step.size - 1);
  s.seen += step.rows;
  join(s, shape, c.last);
  return step;
}

/// Steps that may go in one, nothing of which need be stored but what is left: picks of `count`
/// whole buckets, the halving of each, and if `levels` is 2 that of each four's survivors together.
struct Buckets {
  uint32_t count = 0, levels = 0;
  Compress2 of = {};

  PITH_BOTH_SIDES uint64_t rows() const { return uint64_t{count * of.bucket} << of.strata; }
  /// Rows that are left, of level `levels`.
  PITH_BOTH_SIDES uint32_t left() const {
    return levels == 2 ? count / 4 * of.bucket : count * (of.bucket / 2);
  }
};

/// The next of them, of at most `picks` picks whose halvings are of at most `most` rows, for a
/// stream for which `n` rows wait; it stands behind them then. None if count is 0.
PITH_BOTH_SIDES inline Buckets next_buckets(ExpressState& s, const ExpressShape& shape, uint64_t n,
                                            uint32_t picks, uint32_t most) {
  Buckets b;
  if (s.tau == 1 || s.stratum != 0 || s.levels[0] != 0) return b;
  if (s.coreset == shape.target || log2_of(s.tau) % 2 == 1) return b;  // it is thinned first
  b.of = Compress2::of(shape, s.tau);
  const uint32_t bucket = b.of.bucket, last = b.of.last;
  if (last == 0 || bucket > most || full_level(s, b.of) < last) return b;
  const auto room = [&](uint32_t level) {
    return (level == last ? shape.quarter() : bucket << level) - s.levels[level];
  };
  const auto least = [](uint64_t x, uint64_t y) { return x < y ? x : y; };
  const auto waiting = static_cast<uint32_t>(least((n >> b.of.strata) / bucket, picks / bucket));
  if (last >= 2 && s.levels[1] == 0 && 2 * bucket <= most) {
    b.count = 4 * static_cast<uint32_t>(least(waiting / 4, room(2) / bucket));
    b.levels = 2;
  }
  if (b.count == 0) {
    b.count = static_cast<uint32_t>(least(waiting, room(1) / (bucket / 2)));
    b.levels = 1;
  }
  s.levels[b.levels] += b.left();
  s.seen += b.rows();
  join(s, shape, last);
  return b;
}

/// Where the stream stands `n` rows later. `emit(step)` hears what is done to the body, in order.
template <class Emit>
void advance(ExpressState& state, const ExpressShape& shape, uint64_t n, Emit&& emit) {
  for (Step step = next_step(state, shape, n); step.rows > 0; step = next_step(state, shape, n)) {
    if (step.op != Op::kHalve) n -= step.rows;
    emit(step);
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
