// Weights in blocks (of 32) for AVX-512 with byte products (VNNI).

#define PITH_VNNI_TARGET
#include "kernels/cpu/block_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/blocks_small_vnni.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"

#if PITH_SIMD_TARGET
#include "kernels/cpu/blocks_small-inl.h"
#endif
