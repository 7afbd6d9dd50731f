#pragma once
// BalanceKV's merge and reduce (its paper's Alg. 1): rows gather in level 0; each time it holds a
// block it is balanced into level 1, that into level 2 when two batches are there, and so on.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "plan/rule.h"

namespace pith {

inline constexpr uint32_t kBalanceRounds = 16;

struct BalanceShape {
  uint32_t rounds = 2;   ///< T: levels that are halved
  uint32_t block = 256;  ///< b, the paper's batch size t
  bool endless = false;  ///< level T is halved too, see BalanceTree
  bool flush = false;    ///< HalveBlocks: at a prompt's end all rows but the newest go to level T
  bool rests = false;    ///< HalveBlocks: from a prompt's end to the next one's rows are not halved
  /// Tags of a row's random numbers: a doubling of its weight each from `first_tag` on, and strata.
  uint32_t first_tag = 0, stratum_tag = 255;
};

/// One merge-and-reduce tree. Rows of its store lie in stream order: level T | ... | level 0 | the
/// pick of an unfinished stratum, and rows of level l have weight 2^(base + l).
///
/// The paper's C^T grows by b/2 rows every 2^(T-1) batches. An endless tree halves it whenever its
/// second batch arrives: all other levels are empty then, so that what is left is again level T of
/// a tree whose base is one higher. From then on one random row of each 2^base rows enters level 0.
/// A tree holds at most b (T/2 + 1) rows, whatever the stream's length.
struct BalanceTree {
  uint64_t batches = 0;  ///< that level 0 was full, in units of today's base
  uint64_t stratum = 0;  ///< rows counted of the unfinished stratum
  uint32_t base = 0;     ///< 0 unless endless
  std::array<uint32_t, kBalanceRounds + 1> levels{};

  uint32_t rows() const {
    uint32_t n = stratum > 0 ? 1 : 0;
    for (uint32_t l : levels) n += l;
    return n;
  }
};

/// A level that is halved, but for so many rows at level 0's end.
struct HalvedLevel {
  uint32_t level = 0, behind = 0;
};

/// Returns how many rows stay, which have left `level`.
template <class Emit>
uint32_t halve_level(BalanceTree& tree, const BalanceShape& shape, const HalvedLevel& halved,
                     Emit& emit) {
  uint32_t& level = tree.levels[halved.level];
  const uint32_t stay = halved.level == 0 ? halved.behind : 0, count = level - stay,
                 doublings = tree.base + halved.level;
  const uint32_t kept = emit(Step{.op = Op::kHalve,
                                  .rows = count,
                                  .first = tree.rows() - halved.behind - count,
                                  .behind = halved.behind,
                                  .tag = shape.first_tag + doublings,
                                  .weight = uint64_t{2} << doublings});
  level = stay;
  return kept;
}

/// Level 0's first block goes to level 1, and further as the listing has it: p = j/t, halved while
/// it is an integer. Returns whether rows have come to level T.
template <class Emit>
bool balance_block(BalanceTree& tree, const BalanceShape& shape, Emit& emit) {
  const uint32_t behind = tree.levels[0] - shape.block;
  uint64_t p = ++tree.batches;
  bool even = true;
  for (uint32_t level = 0; even && level < shape.rounds; ++level, p /= 2) {
    const uint32_t kept = halve_level(tree, shape, {level, behind}, emit);
    tree.levels[level + 1] += kept;
    even = p % 2 == 0;
  }
  return even;
}

/// The tree after `n` rows more. `emit(step)` carries out a step on its store: kMove, kPick,
/// kHalve; it returns how many rows a kHalve leaves: half of them, unless the walk decides
/// otherwise.
template <class Emit>
void advance(BalanceTree& tree, const BalanceShape& shape, uint64_t n, Emit&& emit) {
  for (uint64_t taken = 0; n > 0; n -= taken) {
    const uint64_t size = uint64_t{1} << tree.base, room = shape.block - tree.levels[0];
    taken = shape.rounds == 0 ? n : std::min(n, room * size - tree.stratum);
    Step step{.rows = static_cast<uint32_t>(taken)};
    if (tree.base > 0) {  // a stratum keeps one row, which has the weight of those counted so far
      step.op = Op::kPick;
      step.first = static_cast<uint32_t>(tree.stratum);
      step.tag = shape.stratum_tag;
      step.size = size;
    }
    emit(step);
    tree.levels[0] += static_cast<uint32_t>((tree.stratum + taken) / size);
    tree.stratum = (tree.stratum + taken) % size;
    if (shape.rounds == 0 || tree.levels[0] != shape.block) continue;
    if (!balance_block(tree, shape, emit) || !shape.endless) continue;
    tree.levels[shape.rounds] = halve_level(tree, shape, {shape.rounds}, emit);
    ++tree.base;
    tree.batches /= 2;
  }
}

/// The practical form: exactly half of each block stays, so that one tree serves all heads.
class HalveBlocks final : public Rule {
 public:
  explicit HalveBlocks(const BalanceShape& shape) : shape_(shape) {}
  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const override;
  void end_prompt(PlanState& state, Steps& steps) const override;
  // Whole blocks leave n / 2^T rows; each level below holds less than a block.
  size_t most_rows(size_t n) const override {
    if (shape_.rests) return n;
    return std::min(n, (n >> shape_.rounds) + size_t{shape_.block} * shape_.rounds);
  }

  static BalanceTree load(const PlanState& state);

 private:
  static void save(const BalanceTree& tree, PlanState& state);

  BalanceShape shape_;
};

/// The guaranteed form: trees for the numerator in buckets of value norms and one for the
/// denominator. Which rows enter which depends on their values, so each device has the machine.
class BalanceSums final : public Rule {
 public:
  explicit BalanceSums(const BalanceShape& shape) : shape_(shape) {}
  void feed(PlanState& state, Zone from, uint32_t n, Steps& steps) const override;
  bool by_contents() const override { return true; }
  size_t most_rows(size_t n) const override;

 private:
  BalanceShape shape_;
};

}  // namespace pith
