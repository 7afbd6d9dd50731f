// Which instruction sets the SIMD files are compiled for: AVX2 and AVX-512 on x86; elsewhere what
// the compiler's flags allow. Included before hwy/foreach_target.h by every file of this folder
// that uses Highway; PITH_SIMD_TARGET guards the body, because Highway also includes such a file
// for its fallback target, which `scalar` replaces.
#ifndef PITH_KERNELS_CPU_TARGETS_H_
#define PITH_KERNELS_CPU_TARGETS_H_

// A file that defines PITH_VNNI_TARGET is compiled for AVX-512 with byte products alone.
#ifdef PITH_VNNI_TARGET
#define HWY_WANT_AVX3_DL
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3)
#define PITH_SIMD_TARGET (HWY_TARGET == HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)

#if defined(__x86_64__)
#define PITH_SIMD_TARGET (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3)
#else
#define PITH_SIMD_TARGET (HWY_TARGET == HWY_STATIC_TARGET)
#endif
#endif

#endif  // PITH_KERNELS_CPU_TARGETS_H_
