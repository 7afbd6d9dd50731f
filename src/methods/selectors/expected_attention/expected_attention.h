#pragma once
// expected_attention's options, as both devices read them.

#include <complex>
#include <cstdint>

#include "methods/selectors/scores/score_selector.h"

namespace pith {

struct ExpectedOptions : ScoreOptions {
  size_t future = 512;
  bool rope = true, covariance = true, vnorm = true;
  double epsilon = 0;
  Fields fields();
};

/// The mean of e^(i p radians) over `count` positions p from `first` on: a pair of channels turned
/// by it is turned by the RoPE averaged over these positions.
std::complex<double> mean_turn(double radians, int64_t first, size_t count);

}  // namespace pith
