#pragma once
// expected_attention's options, as both devices read them.

#include "methods/scores/score_selector.h"

namespace pith {

struct ExpectedOptions : ScoreOptions {
  size_t future = 512;
  bool covariance = true, vnorm = true;
  double epsilon = 0;
  Fields fields();
};

}  // namespace pith
