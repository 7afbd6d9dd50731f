#pragma once
// For tests: the weight types that have blocks.

#include <vector>

#include "core/weight_type.h"

namespace pith {

inline std::vector<WeightType> block_types() {
  std::vector<WeightType> types;
  for (const WeightType type : weight_types()) {
    if (!dense_type(type)) types.push_back(type);
  }
  return types;
}

}  // namespace pith
