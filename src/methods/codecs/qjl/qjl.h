#pragma once
// QJL (Zandieh et al. 2024): keys as sign bits of a Johnson-Lindenstrauss sketch and a norm. With S
// of m rows, <q, k> is estimated by c |k| / m <S q, sign(S k)>, which is unbiased over S; values
// are 2-bit codes per token. Groups of 32 consecutive rows name the channels of largest norm: these
// form a second vector with a sketch and a norm of its own, and queries are split the same way.
// Bits per key: m + m_out + 32, and 16 (outliers + 2) / 32 for the group. That is paper=true. By
// default a key has 3 bits per number instead of a sketch (plane_rows.h), of keys around the mean
// of their 128, and values are as many bits after the same transform: docs/decisions/0260.

#include "methods/centre_options.h"
#include "policy/registry.h"
#include "rows/cpu/projection.h"

namespace pith {

struct QjlFormat;
struct PlaneFormat;

struct QjlOptions : CentreOptions {
  QjlOptions() { center = 128; }
  std::optional<size_t> bits;  ///< m
  Sketch sketch = Sketch::kOrtho;
  std::optional<size_t> outliers;  ///< unset: 8
  std::optional<size_t> out_bits;  ///< m_out
  double slack = 0;
  int residual = 3;
  bool unbias_weights = false;
  bool paper = false;

  Fields fields();
  void as_in_paper() { residual = 0, center = 0; }
  /// Throws kInvalidArgument.
  void check(const std::string& method) const;
  /// Bits of the sketch of what a coarse code leaves.
  size_t residual_bits() const { return bits.value_or(0); }
  /// Without a coarse code.
  QjlFormat format() const;
  /// With one.
  PlaneFormat key_planes() const;
  PlaneFormat value_planes() const;
};

/// The most outlying channels of a group that the GPU's kernels have room for.
inline constexpr size_t kQjlOutliersOnGpu = 8;

}  // namespace pith
