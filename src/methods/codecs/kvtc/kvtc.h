#pragma once
// Transform coding (KVTC: Staniszewski and Lancucki 2025, arXiv 2511.01815): keys before RoPE, and
// values, along eigenvectors of the head's first rows, bits by variance.

#include "policy/registry.h"

namespace pith {

struct KvtcOptions {
  double bits = 2.25;
  size_t calibrate = 256;
  Fields fields();
};

}  // namespace pith
