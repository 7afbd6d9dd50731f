#pragma once
// TurboQuant (Zandieh et al. 2025) without its sketch: levels after a Walsh-Hadamard transform, one
// scale per row.

#include "methods/centre_options.h"
#include "policy/registry.h"

namespace pith {

struct TurboquantOptions : CentreOptions {
  int bits = 2;
  bool fit = false;  ///< scales of the least squared error
  Fields fields();
  /// Of PlaneFormat. Keys of one bit are too noisy for it: what their scores would gain in the
  /// mean, softmax loses to their noise.
  bool whole_rows(Side side) const { return !fit && (side == Side::kValues || bits > 1); }
};

}  // namespace pith
