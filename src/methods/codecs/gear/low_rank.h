#pragma once
// The best approximation of a small matrix by one of rank r, nearly: subspace iteration, as GEAR
// does it. Cost: about 4 r (n D) multiply-adds a round.

#include <cstddef>
#include <vector>

#include "core/philox.h"

namespace pith {

struct LowRank {
  std::vector<float> left;   // [n, r], orthonormal columns
  std::vector<float> right;  // [r, D]
};

/// x [n, D] ~ left right. `random` gives the start, numbers from `first` on; rank <= min(n, D).
LowRank low_rank(const std::vector<float>& x, size_t n, size_t dim, size_t rank,
                 const Philox& random);

}  // namespace pith
