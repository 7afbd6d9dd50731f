#pragma once
// Halving: half of a run of rows stays and stands for all of it, chosen so that sums of
// exp(<k, q>) v over the half are close to half of the sums over all ("Express Language Modeling",
// App. A and eq. 4; BalanceKV, Alg. 2). Two walks over the same kernel: over pairs of neighbours,
// which keeps one of each pair, and over single rows.
//
// Cost of S rows: 2 S^2 D multiply-adds for the kernel, O(S^2) for the walk; scratch O(S D).

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/context.h"
#include "rows/cpu/row_store.h"
#include "select/draws.h"

namespace pith {

enum class Walk : uint8_t {
  kPairs,      ///< kernel halving: one row of each pair of neighbours
  kRows,       ///< SoftmaxBalance: signs row by row, the smaller side stays
  kRowsExact,  ///< the same, filled up to exactly half at random (the authors' practical form)
};

/// Which side of a walk over rows stays.
enum class KeptSide : uint8_t { kSmaller, kCoin };

/// K(i, j) = exp(temperature <k_i, k_j> scale - shift) (<v_i, v_j> + constant max|v|^2), and how
/// the walk uses it.
struct HalvingRule {
  float scale = 0;  ///< of q.k
  float temperature = 1;
  float value_constant = 1;  ///< times the square of the largest value entry
  bool values = true;        ///< false: every value is 1 (sums of the denominator)
  bool centre = false;       ///< subtract the run's mean key (softmax does not change)
  float balance = 0;         ///< times the paper's failure threshold; 0 = always the better sign
  float delta = 0.5f;        ///< failure probability in the threshold
  Walk walk = Walk::kPairs;
  KeptSide side = KeptSide::kSmaller;
};

/// The rows of one run, as f32.
struct HalvingRows {
  float* k = nullptr;                  // [S, D], changed: centred, reordered
  float* v = nullptr;                  // [S, D]
  const int64_t* positions = nullptr;  // [S]
  size_t rows = 0;                     // S
  size_t dim = 0;                      // D
};

struct Halved {
  std::vector<uint32_t> kept;  ///< rows of the run that stay, ascending
  size_t failures = 0;         ///< steps at which the walk left the range of its guarantee
};

/// Scratch is counted at `memory`.
Halved halve(const Kernels& kernels, MemoryCounter& memory, const HalvingRule& rule,
             const HalvingRows& rows, const HalvingRandom& random);

/// The most scratch of halving `rows` rows of a store.
size_t halving_scratch(size_t rows, size_t dim);

/// Halves rows [first, first + count) of a store, behind which `behind` more are its last, and
/// gives the survivors the log-weight `log_weight`. Returns how many survive and the walk's
/// failures.
struct SegmentHalved {
  size_t kept = 0, failures = 0;
};
struct SegmentHalving {
  size_t first = 0, count = 0, behind = 0;
  float log_weight = 0;  ///< of the survivors
};
SegmentHalved halve_segment(const Context& context, RowStore& store, const HalvingRule& rule,
                            const SegmentHalving& segment, const HalvingRandom& random);

}  // namespace pith
