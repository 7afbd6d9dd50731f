#pragma once
// Who carries out kPick and kHalve on the CPU: halvings and reservoirs of one, for every selector
// whose rows stand for others.

#include "plan/step.h"
#include "select/halving.h"

namespace pith {

struct HalverRule {
  HalvingRule halving;
  float weight_exponent = 1;  ///< a row of weight w counts as w^exponent
};

/// Rows of one layer. Random numbers are those of (seed, layer, head, position, the step's tag).
class Halver {
 public:
  Halver(const Context& context, const HalverRule& rule, uint64_t seed, uint32_t layer)
      : context_(context), rule_(rule), seed_(seed), layer_(layer) {}

  /// One row of each stratum goes to the end of the store.
  void pick(RowStore& store, uint32_t head, const NewRows& rows, const Step& step) const;
  SegmentHalved halve(RowStore& store, uint32_t head, const Step& step) const;

 private:
  float log_weight(uint64_t weight) const;

  Context context_;
  HalverRule rule_;
  uint64_t seed_;
  uint32_t layer_;
};

}  // namespace pith
