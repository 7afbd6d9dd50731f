#pragma once
// GEAR (Kang et al. 2024): integer codes, a low-rank product of what they miss, and the numbers
// that stand out apart.

#include "compress/registry.h"

namespace pith {

CodecRow gear_row();

}  // namespace pith
