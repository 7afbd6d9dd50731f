#pragma once
// KIVI (Liu et al. 2024): keys are coded per channel over 32 rows, values per row.

#include "methods/int_options.h"

namespace pith {

struct KiviOptions : IntOptions {
  int bits = 2;
  Fields fields();
};

}  // namespace pith
