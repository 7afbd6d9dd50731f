#pragma once
// Codecs of b-bit integers in groups of 32 with f16 scales, one registry row each: int8 and int4
// (llama.cpp's q8_0 and q4_0), and KIVI.

#include "methods/centre_options.h"
#include "policy/registry.h"

namespace pith {

struct IntOptions : CentreOptions {
  bool hadamard = false;
  Fields fields();
};

struct KiviOptions : IntOptions {
  int bits = 2;
  Fields fields();
};

}  // namespace pith
