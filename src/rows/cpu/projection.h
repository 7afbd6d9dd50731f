#pragma once
// The random projection of QJL, one for the keys of a layer.

#include <memory>

#include "core/memory.h"
#include "kernels/kernels.h"

namespace pith {

enum class Sketch : uint8_t {
  kGaussian,  ///< independent normal numbers
  kOrtho,     ///< the same, each D rows orthogonalised and scaled to norm sqrt(D): smaller variance
  kHadamard   ///< sqrt(D) H diag(s) H diag(t) for random signs s, t: D a power of two
};

struct ProjectionShape {
  Sketch sketch = Sketch::kOrtho;
  size_t bits = 0;  // m
  size_t dim = 0;   // D
};

class Projection {
 public:
  /// Throws kInvalidArgument where the sketch does not exist for D.
  Projection(MemoryCounter& memory, const ProjectionShape& shape, uint64_t seed, uint32_t layer,
             uint32_t stream);

  /// Channel c of all rows, [m]: everything that is done with S adds up such columns.
  const float* column(size_t c) const { return columns_.data() + c * shape_.bits; }
  /// The sum of a column.
  float column_sum(size_t c) const { return sums_[c]; }
  /// out [m] <- S x, x [D].
  void apply(const Kernels& kernels, float* out, const float* x) const;
  size_t bits() const { return shape_.bits; }
  size_t dim() const { return shape_.dim; }
  /// c: what makes c |k| / m <S q, sign(S k)> unbiased. sqrt(pi / 2) for normal rows; for rows
  /// sqrt(D) u, u uniform on the sphere, sqrt(pi) Gamma((D + 1) / 2) / (Gamma(D / 2) sqrt(D)).
  float unbias() const { return unbias_; }
  /// The variance of c |k| / m <S q, sign(S k)> over S, in units of |k|^2 |q|^2 / m: c^2
  /// for independent rows, c^2 - 1 for orthogonal ones (on average over directions of q).
  float noise() const { return unbias_ * unbias_ - (shape_.sketch == Sketch::kGaussian ? 0 : 1); }
  /// The bytes() of one, before it is made. Throws as the constructor does.
  static size_t bytes_of(const ProjectionShape& shape);
  /// As allocated: large tables are whole pages, and nobody else counts what they leave empty.
  size_t bytes() const { return columns_.capacity_bytes() + sums_.capacity_bytes(); }

 private:
  ProjectionShape shape_;
  float unbias_ = 0;
  Array<float> columns_;  // [D, m]
  Array<float> sums_;     // [D]
};

}  // namespace pith
