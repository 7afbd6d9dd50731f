// The formats with blocks of 256. Included once a target by a file for each group of targets.

#include "hwy/cache_control.h"
#include "kernels/cpu/block_products-inl.h"

HWY_PUSH_ATTRIBUTES(PITH_BLOCKS_STR)
namespace pith {
namespace HWY_NAMESPACE {

BlockFunctions large_functions(WeightType type) {
  switch (type) {
    case WeightType::kQ2K: return functions_of<Q2K>();
    case WeightType::kQ3K: return functions_of<Q3K>();
    case WeightType::kQ5K: return functions_of<Q5K>();
    case WeightType::kQ6K: return functions_of<Q6K>();
    case WeightType::kIq4Xs: return functions_of<Iq4Xs>();
    default: return functions_of<Q4K>();
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pith
HWY_AFTER_NAMESPACE();
