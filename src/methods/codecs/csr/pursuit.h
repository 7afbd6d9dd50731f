#pragma once
// Rows as sums of few atoms: matching pursuit (Mallat & Zhang 1993), signed, and orthogonal
// matching pursuit from correlations alone (Batch-OMP: Rubinstein, Zibulevsky & Elad 2008).
// A row costs N d multiply-adds for its correlations with all N atoms, one product for all rows of
// a call; each later step costs N with the atom's row of the Gram matrix (mp), or N for each atom
// chosen so far (omp). Gram rows are made when an atom is first chosen, N d each, or all at once if
// many rows are coded. The result for a row depends on nothing but the row and the atoms, so
// codes do not depend on how rows are cut into calls.

#include <vector>

#include "core/memory.h"
#include "kernels/kernels.h"

namespace pith {

enum class Solver : uint8_t {
  kMp,  ///< takes the atom's part off the residual; an atom chosen again adds to its coefficient
  kOmp  ///< fits all chosen coefficients anew at each step
};

class Pursuit {
 public:
  /// `atoms` holds `count` atoms and must outlive this. Scratch is counted.
  Pursuit(const Kernels& kernels, MemoryCounter& memory, const AtomRows& atoms, size_t count);

  /// The most that it takes of `memory` with so many atoms of `dim` numbers, for `pairs` pairs in
  /// all.
  static size_t scratch(size_t count, size_t dim, size_t pairs);

  struct Shape {
    size_t pairs = 0;  ///< at most SparseRows::kMaxPairs
    Solver solver = Solver::kMp;
  };
  /// indices, coefficients (f16) [rows, pairs] <- codes of x [rows, d]. Pairs that are not needed
  /// are (0, 0). Throws kNonFinite for coefficients that f16 cannot hold.
  void code(uint16_t* indices, uint16_t* coefficients, const float* x, size_t rows,
            const Shape& shape);

 private:
  /// The atoms chosen for one row.
  struct Chosen {
    size_t count = 0;
    size_t atoms[SparseRows::kMaxPairs];
    float coefficients[SparseRows::kMaxPairs];
  };
  const float* gram_row(size_t atom);
  void make_gram();
  void pursue(Chosen& chosen, float* correlations, size_t pairs);
  void pursue_orthogonal(Chosen& chosen, const float* correlations, size_t pairs);
  size_t largest(float* correlations) const;

  const Kernels& kernels_;
  MemoryCounter& memory_;
  size_t count_, dim_;              // N, d
  Array<float> columns_;            // [d, N] the atoms, transposed
  Array<float> all_gram_;           // [N, N], or empty
  std::vector<Array<float>> gram_;  // else blocks of Gram rows, each [kGramRows, N]
  std::vector<uint32_t> gram_of_;   // [N] row of the atom in gram_, or kNone
  size_t gram_rows_ = 0;
  Array<float> correlations_;  // [kBlock, N]
  Array<float> rest_;          // [N] correlations with the residual
  std::vector<float> atom_;    // [d]
};

}  // namespace pith
