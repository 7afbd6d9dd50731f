#pragma once
// KVQuant (Hooper et al. 2024): non-uniform codes, keys per channel and before RoPE, values per
// row, with the numbers that stand out kept apart.

#include "compress/registry.h"

namespace pith {

struct NonUniformFormat;

CodecRow kvquant_row();

/// The parameters of either side.
NonUniformFormat kvquant_format(const Parameters& parameters);

}  // namespace pith
