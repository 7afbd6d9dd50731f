// Which instruction sets weights in blocks are compiled for, as targets.h says it of other files:
// AVX2, or AVX-512 with byte products (PITH_VNNI_TARGET). Included before hwy/foreach_target.h.
#ifndef PITH_KERNELS_CPU_BLOCK_TARGETS_H_
#define PITH_KERNELS_CPU_BLOCK_TARGETS_H_

#ifdef PITH_VNNI_TARGET
#include "kernels/cpu/targets.h"
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3 | HWY_AVX3_DL)
#define PITH_SIMD_TARGET (HWY_TARGET == HWY_AVX2)
#endif

#endif  // PITH_KERNELS_CPU_BLOCK_TARGETS_H_
