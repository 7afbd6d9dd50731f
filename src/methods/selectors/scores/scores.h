#pragma once
// Selectors that keep the rows with the best scores, one file a rule, one registry row each.

#include "methods/selectors/scores/score_selector.h"

namespace pith {

struct H2oOptions : ScoreOptions {
  double decay = 1;
  Fields fields();
};

struct AdaKvOptions : ScoreOptions {
  enum class By : uint8_t { kSnapKv, kH2o, kKeyDiff, kKNorm, kExpectedAttention };
  By by = By::kSnapKv;
  double safeguard = 0.2;
  Fields fields();
};
/// The selector whose scores they are.
SelectorRow adakv_scores(AdaKvOptions::By by);

}  // namespace pith
