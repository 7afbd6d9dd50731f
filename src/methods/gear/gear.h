#pragma once
// GEAR (Kang et al. 2024): integer codes, a low-rank product of what they miss, and the numbers
// that stand out apart.

#include "compress/registry.h"

namespace pith {

struct GearFormat;

CodecRow gear_row();

/// The parameters of either side.
GearFormat gear_format(const Parameters& parameters);

}  // namespace pith
