#include "rows/cpu/projection.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>
#include <numeric>
#include <vector>

#include "core/allocation.h"
#include "core/philox.h"
#include "pith/error.h"

namespace pith {
namespace {

/// Normal number i of the stream (Box and Muller).
double normal(const Philox& random, uint64_t i) {
  const auto w = random.words(i);
  const double u = (static_cast<double>(w[0]) + 0.5) * 0x1p-32;
  const double v = (static_cast<double>(w[1]) + 0.5) * 0x1p-32;
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
}

/// Orthogonal rows of norm sqrt(D) from normal ones (Gram and Schmidt, twice for precision).
void orthogonalise(std::vector<double>& rows, size_t count, size_t dim) {
  for (size_t i = 0; i < count; ++i) {
    double* x = rows.data() + i * dim;
    for (int pass = 0; pass < 2; ++pass)
      for (size_t j = 0; j < i; ++j) {
        const double* y = rows.data() + j * dim;
        double dot = 0;
        for (size_t c = 0; c < dim; ++c) dot += x[c] * y[c];
        for (size_t c = 0; c < dim; ++c) x[c] -= dot * y[c];
      }
    double norm = 0;
    for (size_t c = 0; c < dim; ++c) norm += x[c] * x[c];
    for (size_t c = 0; c < dim; ++c) x[c] /= std::sqrt(norm);
  }
  for (double& x : rows) x *= std::sqrt(static_cast<double>(dim));
}

/// sqrt(D) H diag(s) H diag(t) of the block that begins at draw `first`. h(i, k) h(k, j) is
/// h(i xor j, k), so entry (i, j) is w(i xor j) t(j) with w = H s: D^2 operations, not D^3.
void hadamard_block(std::vector<double>& rows, size_t count, size_t dim, const Philox& random,
                    uint64_t first) {
  const auto sign = [&](uint64_t i) { return random.words(first + i)[0] & 1 ? 1.0 : -1.0; };
  std::vector<double> w(dim), t(dim);
  for (size_t k = 0; k < dim; ++k) {
    const double s = sign(k) / std::sqrt(static_cast<double>(dim));
    for (size_t i = 0; i < dim; ++i) w[i] += std::popcount(i & k) % 2 ? -s : s;
    t[k] = sign(dim + k);
  }
  for (size_t i = 0; i < count; ++i)
    for (size_t j = 0; j < dim; ++j) rows[i * dim + j] = w[i ^ j] * t[j];
}

/// std::lgamma without its global sign, which threads would race for.
double log_gamma(double x) {
  int sign = 0;
  return lgamma_r(x, &sign);
}

}  // namespace

size_t Projection::bytes_of(const ProjectionShape& shape) {
  if (shape.sketch == Sketch::kHadamard && !std::has_single_bit(shape.dim))
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("qjl(sketch=hadamard) needs a head_dim that is a power of two, this "
                            "model has {}; use sketch=ortho",
                            shape.dim));
  return allocated_bytes(shape.bits * shape.dim * sizeof(float)) +
         allocated_bytes(shape.dim * sizeof(float));
}

Projection::Projection(MemoryCounter& memory, const ProjectionShape& shape, uint64_t seed,
                       uint32_t layer, uint32_t stream)
    : shape_(shape),
      // Forks share it and may outlive this session, so that the counter is the engine's.
      columns_(memory.root(), MemoryKind::kShared),
      sums_(memory.root(), MemoryKind::kShared) {
  const size_t dim = shape.dim;
  bytes_of(shape);                     // checks it
  columns_.reserve(shape.bits * dim);  // exactly: the ledger counts what is used
  columns_.resize(shape.bits * dim);
  sums_.reserve(dim);
  sums_.resize(dim);
  const Philox random(seed, layer, stream);
  for (size_t first = 0; first < shape.bits; first += dim) {
    const size_t count = std::min(dim, shape.bits - first);
    std::vector<double> block(count * dim);
    if (shape.sketch == Sketch::kHadamard) {
      hadamard_block(block, count, dim, random, first * dim);
    } else {
      for (size_t i = 0; i < block.size(); ++i) block[i] = normal(random, first * dim + i);
      if (shape.sketch == Sketch::kOrtho) orthogonalise(block, count, dim);
    }
    for (size_t i = 0; i < count; ++i)
      for (size_t c = 0; c < dim; ++c)
        columns_[c * shape.bits + first + i] = static_cast<float>(block[i * dim + c]);
  }
  for (size_t c = 0; c < dim; ++c)
    sums_[c] = std::accumulate(column(c), column(c) + shape.bits, 0.0f);
  const auto d = static_cast<double>(dim);
  unbias_ = static_cast<float>(shape.sketch == Sketch::kGaussian
                                   ? std::sqrt(std::numbers::pi / 2)
                                   : std::sqrt(std::numbers::pi / d) *
                                         std::exp(log_gamma((d + 1) / 2) - log_gamma(d / 2)));
}

void Projection::apply(const Kernels& kernels, float* out, const float* x) const {
  std::fill_n(out, shape_.bits, 0.0f);
  for (size_t c = 0; c < shape_.dim; ++c)
    if (x[c] != 0) kernels.axpy(out, column(c), x[c], shape_.bits);
}

}  // namespace pith
