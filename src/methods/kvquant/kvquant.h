#pragma once
// KVQuant (Hooper et al. 2024): non-uniform codes, keys per channel and before RoPE, values per
// row, with the numbers that stand out kept apart.

#include "compress/registry.h"

namespace pith {

CodecRow kvquant_row();

}  // namespace pith
