#include "methods/codecs/gear/low_rank.h"

#include <cmath>

namespace pith {
namespace {

// Each round multiplies the error beyond the optimum by (s_(r+1) / s_r)^2; residuals of
// quantisation have flat spectra, where more rounds than these gain nothing that can be seen in
// attention.
constexpr int kRounds = 6;

/// Columns of q [n, rank] made orthonormal (Gram and Schmidt, twice for precision). A column that
/// vanishes stays 0.
void orthonormalise(std::vector<double>& q, size_t n, size_t rank) {
  const auto dot = [&](size_t a, size_t b) {
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += q[i * rank + a] * q[i * rank + b];
    return sum;
  };
  for (size_t j = 0; j < rank; ++j) {
    const double before = std::sqrt(dot(j, j));
    for (int pass = 0; pass < 2; ++pass)
      for (size_t k = 0; k < j; ++k) {
        const double along = dot(j, k);
        for (size_t i = 0; i < n; ++i) q[i * rank + j] -= along * q[i * rank + k];
      }
    const double norm = std::sqrt(dot(j, j));
    const double inverse = norm > 1e-12 * before && norm > 0 ? 1 / norm : 0;
    for (size_t i = 0; i < n; ++i) q[i * rank + j] *= inverse;
  }
}

}  // namespace

LowRank low_rank(const std::vector<float>& x, size_t n, size_t dim, size_t rank,
                 const Philox& random) {
  std::vector<double> right(dim * rank), left(n * rank);
  for (size_t i = 0; i < right.size(); ++i) right[i] = 2.0 * random.uniform(i) - 1;
  for (int round = 0; round < kRounds; ++round) {
    orthonormalise(right, dim, rank);
    for (size_t t = 0; t < n; ++t)
      for (size_t j = 0; j < rank; ++j) {
        double sum = 0;
        for (size_t c = 0; c < dim; ++c) sum += x[t * dim + c] * right[c * rank + j];
        left[t * rank + j] = sum;
      }
    orthonormalise(left, n, rank);
    for (size_t c = 0; c < dim; ++c)
      for (size_t j = 0; j < rank; ++j) {
        double sum = 0;
        for (size_t t = 0; t < n; ++t) sum += x[t * dim + c] * left[t * rank + j];
        right[c * rank + j] = sum;
      }
  }
  LowRank out;
  out.left.assign(left.begin(), left.end());
  out.right.resize(rank * dim);
  for (size_t j = 0; j < rank; ++j)
    for (size_t c = 0; c < dim; ++c)
      out.right[j * dim + c] = static_cast<float>(right[c * rank + j]);
  return out;
}

}  // namespace pith
