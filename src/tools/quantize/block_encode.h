#pragma once
// Numbers to blocks of codes (core/weight_type.h). Done once for a file, so it is plain code; what
// it takes care of is the error. Scales and minima are chosen by least squares over a few tries.

#include <cstddef>
#include <span>

#include "core/weight_type.h"

namespace pith {

/// The types that encode_blocks makes.
std::span<const WeightType> encoded_types();

/// out <- blocks of x [n], whole blocks of finite numbers. Throws kUnsupported for another type,
/// and kInvalidArgument for numbers beyond what a block's f16 scale holds.
void encode_blocks(std::byte* out, const float* x, WeightType type, size_t n);

}  // namespace pith
