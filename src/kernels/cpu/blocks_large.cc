// Weights in blocks (of 256) for AVX2; AVX-512 without byte products takes this too.

#include "kernels/cpu/block_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/blocks_large.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include "kernels/cpu/blocks_large-inl.h"
#endif
