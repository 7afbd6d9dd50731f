#pragma once
// The tables of block_products.h, one a target, and what their files share.

#include "kernels/block_products.h"

namespace pith {

/// The levels of IQ4_NL and IQ4_XS by their codes.
inline constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};
/// Whole numbers that inputs are rounded to: 127, or 127 * 256 + 127.
inline constexpr float kLargestNarrow = 127, kLargestWide = 32639;
inline constexpr float kSmallestInput = 1e-30f;

/// Plain C++, the oracle of the others.
extern const BlockKernels kScalarBlockKernels;

#if defined(__x86_64__)
namespace N_AVX2 {  // NOLINT(readability-identifier-naming): as Highway names it
extern const BlockKernels kBlockKernels;
}
namespace N_AVX3_DL {  // NOLINT(readability-identifier-naming): as Highway names it
extern const BlockKernels kBlockKernels;
}
#endif

}  // namespace pith
