#pragma once
// expected_attention's options, as both devices read them.

#include "compress/registry.h"

namespace pith {

struct ExpectedOptions {
  size_t future = 0;  ///< coming positions over which RoPE is averaged
  bool covariance = true, vnorm = true;
  double epsilon = 0;
};
/// Throws kInvalidArgument.
ExpectedOptions expected_options(const Parameters& parameters);

}  // namespace pith
