#pragma once
// GEAR (Kang et al. 2024): integer codes, a low-rank product of what they miss, and the numbers
// that stand out apart.

#include "methods/centre_options.h"
#include "policy/registry.h"

namespace pith {

struct GearFormat;

/// The highest rank of a product that the GPU's kernels have room for.
inline constexpr size_t kGearRankOnGpu = 8;

struct GearOptions : CentreOptions {
  int bits = 2;
  size_t rank = 2;
  std::optional<size_t> outliers;
  size_t rows = 128;
  Fields fields();
  /// Of either side.
  GearFormat format() const;
};

}  // namespace pith
