// Pursuit on data whose answer is known: planted sums are found again, errors fall with pairs and
// atoms, orthogonal pursuit beats plain pursuit.

#include "methods/codecs/csr/pursuit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "methods/codecs/csr/test_rows.h"

namespace pith {
namespace {

using csr_test::kDim;
using csr_test::Machine;
using csr_test::normals;
using csr_test::random_atoms;

/// Identity and Walsh-Hadamard bases: 128 atoms of 64 channels, no two closer than 1/8, so that any
/// sum of at most 4 = (1 + 8) / 2 atoms is found (Tropp 2004, Theorem 3.1).
std::vector<uint16_t> two_bases() {
  std::vector<uint16_t> atoms(2 * kDim * kDim);
  for (size_t i = 0; i < kDim; ++i)
    for (size_t c = 0; c < kDim; ++c) {
      atoms[i * kDim + c] = f32_to_f16(i == c);
      const bool odd = __builtin_popcountll(i & c) % 2;
      atoms[(kDim + i) * kDim + c] = f32_to_f16(odd ? -0.125f : 0.125f);
    }
  return atoms;
}

struct Codes {
  std::vector<uint16_t> indices;
  std::vector<float> coefficients;
};

Codes pursue(const std::vector<uint16_t>& atoms, const std::vector<float>& x, size_t dim,
             const Pursuit::Shape& shape) {
  Machine machine;
  const size_t count = atoms.size() / dim, rows = x.size() / dim;
  Pursuit pursuit(machine.context.kernels, machine.memory, {atoms.data(), count, nullptr, dim},
                  count);
  Codes codes{std::vector<uint16_t>(rows * shape.pairs), {}};
  std::vector<uint16_t> bits(rows * shape.pairs);
  pursuit.code(codes.indices.data(), bits.data(), x.data(), rows, shape);
  for (uint16_t b : bits) codes.coefficients.push_back(f16_to_f32(b));
  return codes;
}

/// Squared distance of each row from its code.
std::vector<double> residuals(const std::vector<uint16_t>& atoms, const std::vector<float>& x,
                              size_t dim, const Codes& codes) {
  const size_t rows = x.size() / dim, pairs = codes.indices.size() / rows;
  std::vector<double> out(rows);
  for (size_t t = 0; t < rows; ++t)
    for (size_t c = 0; c < dim; ++c) {
      double left = x[t * dim + c];
      for (size_t i = t * pairs; i < (t + 1) * pairs; ++i)
        left -= double{codes.coefficients[i]} * f16_to_f32(atoms[codes.indices[i] * dim + c]);
      out[t] += left * left;
    }
  return out;
}

double sum(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0); }

TEST(Pursuit, PlantedSumsAreFound) {
  const auto atoms = two_bases();
  std::mt19937 random(1);
  for (size_t s = 1; s <= 4; ++s)
    for (int trial = 0; trial < 50; ++trial) {
      std::set<uint16_t> planted;
      while (planted.size() < s) planted.insert(static_cast<uint16_t>(random() % (2 * kDim)));
      std::vector<float> x(kDim);
      std::vector<float> weights;
      for (uint16_t n : planted) {
        // Halves of odd numbers: f16 holds them, and none is 0.
        weights.push_back(static_cast<float>(static_cast<int>(random() % 32) * 2 - 31) / 2);
        for (size_t c = 0; c < kDim; ++c) x[c] += weights.back() * f16_to_f32(atoms[n * kDim + c]);
      }
      const Codes omp = pursue(atoms, x, kDim, {s, Solver::kOmp});
      EXPECT_EQ(std::set<uint16_t>(omp.indices.begin(), omp.indices.end()), planted);
      EXPECT_LT(residuals(atoms, x, kDim, omp)[0], 1e-4);
      // Plain pursuit never chooses another atom either, but may need an atom twice.
      const Codes mp = pursue(atoms, x, kDim, {s, Solver::kMp});
      for (size_t i = 0; i < s; ++i)
        EXPECT_TRUE(mp.coefficients[i] == 0 || planted.contains(mp.indices[i]));
    }
}

TEST(Pursuit, ErrorsFallWithPairsAndOrthogonalPursuitIsBetter) {
  const auto atoms = random_atoms(256, kDim, 2);
  const auto x = normals(200 * kDim, 3);
  std::vector<double> last[2] = {std::vector<double>(200, INFINITY),
                                 std::vector<double>(200, INFINITY)};
  for (size_t s : {1, 2, 3, 4, 6, 8, 12, 16, 32}) {
    double total[2] = {};
    for (Solver solver : {Solver::kMp, Solver::kOmp}) {
      const auto side = static_cast<size_t>(solver);
      const auto left = residuals(atoms, x, kDim, pursue(atoms, x, kDim, {s, solver}));
      // f16 coefficients add up to 2^-22 of a row's norm, about 64.
      for (size_t t = 0; t < 200; ++t) EXPECT_LE(left[t], last[side][t] + 1e-4) << s;
      last[side] = left;
      total[side] = sum(left);
    }
    EXPECT_LE(total[1], total[0] * (1 + 1e-6)) << s;
    EXPECT_TRUE(s < 8 || total[1] < 0.95 * total[0]) << s;
  }
}

TEST(Pursuit, ErrorsFallWithAtoms) {
  const auto x = normals(100 * kDim, 4);
  double last = INFINITY;
  for (size_t n : {64, 256, 1024}) {
    const auto atoms = random_atoms(n, kDim, 5);
    const double left = sum(residuals(atoms, x, kDim, pursue(atoms, x, kDim, {8, Solver::kMp})));
    EXPECT_LT(left, last);
    last = left;
  }
}

TEST(Pursuit, AnAtomChosenAgainAddsToItsCoefficient) {
  // Two atoms at 45 degrees and a row in their plane: plain pursuit goes back and forth.
  std::vector<uint16_t> atoms(2 * 16);
  const float half = std::sqrt(0.5f);
  atoms[0] = f32_to_f16(1);
  atoms[16] = atoms[17] = f32_to_f16(half);
  std::vector<float> x(16);
  x[0] = -3;
  x[1] = 2;
  for (size_t s : {3, 6, 12}) {
    const Codes codes = pursue(atoms, x, 16, {s, Solver::kMp});
    EXPECT_NE(codes.indices[0], codes.indices[1]);
    for (size_t i = 2; i < s; ++i) EXPECT_EQ(codes.coefficients[i], 0);
    EXPECT_NEAR(residuals(atoms, x, 16, codes)[0], std::pow(0.5, static_cast<double>(s) - 3), 1e-3);
  }
}

TEST(Pursuit, NegativesOfAtomsAddNothing) {
  const auto atoms = random_atoms(128, kDim, 6);
  auto both = atoms;
  for (uint16_t a : atoms) both.push_back(a ^ 0x8000);
  const auto x = normals(50 * kDim, 7);
  for (Solver solver : {Solver::kMp, Solver::kOmp}) {
    const auto a = residuals(atoms, x, kDim, pursue(atoms, x, kDim, {8, solver}));
    const auto b = residuals(both, x, kDim, pursue(both, x, kDim, {8, solver}));
    for (size_t t = 0; t < 50; ++t) EXPECT_NEAR(a[t], b[t], 1e-3);
  }
}

}  // namespace
}  // namespace pith
