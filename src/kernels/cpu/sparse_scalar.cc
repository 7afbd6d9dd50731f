// Plain C++ twins of the primitives in sparse.cc.

#include <cmath>

#include "core/dtype.h"
#include "kernels/cpu/tables.h"

namespace pith::sparse_scalar {

size_t add_find_largest(float* acc, const float* x, float s, size_t n) {
  size_t best = 0;
  for (size_t i = 0; i < n; ++i) {
    acc[i] = std::fma(s, x[i], acc[i]);
    if (std::abs(acc[i]) > std::abs(acc[best])) best = i;
  }
  return best;
}

namespace {

const uint16_t* atom(const AtomRows& atoms, size_t n) {
  return n < atoms.split ? atoms.first + n * atoms.dim
                         : atoms.second + (n - atoms.split) * atoms.dim;
}

/// f(chunk, index, coefficient) for the pairs of row t.
template <class F>
void each_pair(const SparseRows& rows, size_t t, F&& f) {
  for (size_t j = 0; j < rows.chunks; ++j)
    for (size_t i = 0; i < rows.pairs; ++i) {
      const size_t at = (t * rows.chunks + j) * rows.pairs + i;
      f(j, size_t{rows.indices[at]}, f16_to_f32(rows.coefficients[at]));
    }
}

}  // namespace

void sum_atoms(float* out, const SparseRows& rows, const AtomRows& atoms, size_t count) {
  const size_t width = rows.chunks * atoms.dim;
  for (size_t t = 0; t < count; ++t) {
    float* row = out + t * width;
    for (size_t c = 0; c < width; ++c) row[c] = 0;
    each_pair(rows, t, [&](size_t j, size_t n, float coefficient) {
      const uint16_t* x = atom(atoms, n);
      for (size_t c = 0; c < atoms.dim; ++c) {
        float& sum = row[j * atoms.dim + c];
        sum = std::fma(coefficient, f16_to_f32(x[c]), sum);
      }
    });
  }
}

void sparse_dots(float* out, size_t ld, const float* dots, size_t atoms, size_t queries,
                 const SparseRows& rows, size_t count, float scale) {
  for (size_t t = 0; t < count; ++t)
    for (size_t m = 0; m < queries; ++m) {
      float sum = 0;
      each_pair(rows, t, [&](size_t j, size_t n, float coefficient) {
        sum = std::fma(coefficient, dots[(j * atoms + n) * queries + m], sum);
      });
      out[m * ld + t] = scale * sum;
    }
}

void add_coefficients(float* sums, size_t atoms, const float* p, size_t ld, size_t queries,
                      const SparseRows& rows, size_t count) {
  for (size_t t = 0; t < count; ++t)
    each_pair(rows, t, [&](size_t j, size_t n, float coefficient) {
      float* at = sums + (j * atoms + n) * queries;
      for (size_t m = 0; m < queries; ++m) at[m] = std::fma(p[m * ld + t], coefficient, at[m]);
    });
}

}  // namespace pith::sparse_scalar
