#pragma once
// Shared by csr's tests: random rows and atoms, and a machine.

#include <cmath>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "kernels/context.h"
#include "machine.h"

namespace pith::csr_test {

using test::Machine;
using test::normals;

inline constexpr size_t kDim = 64;

/// Unit vectors in random directions.
inline std::vector<uint16_t> random_atoms(size_t count, size_t dim, uint32_t seed) {
  const auto x = normals(count * dim, seed);
  std::vector<uint16_t> atoms(x.size());
  for (size_t n = 0; n < count; ++n) {
    double norm = 0;
    for (size_t c = 0; c < dim; ++c) norm += double{x[n * dim + c]} * x[n * dim + c];
    for (size_t c = 0; c < dim; ++c)
      atoms[n * dim + c] = f32_to_f16(static_cast<float>(x[n * dim + c] / std::sqrt(norm)));
  }
  return atoms;
}

}  // namespace pith::csr_test
