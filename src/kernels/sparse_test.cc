// The primitives of sparse rows on every instruction set, against sums in double written here.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "kernels/kernels.h"

namespace pith {
namespace {

std::vector<float> numbers(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> x(n);
  for (float& v : x) v = uniform(random);
  return x;
}

/// Numbers that f16 holds, and their bits.
struct Halves {
  Halves(size_t n, uint32_t seed) : values(numbers(n, seed)), bits(n) {
    for (size_t i = 0; i < n; ++i) values[i] = f16_to_f32(bits[i] = f32_to_f16(values[i]));
  }
  std::vector<float> values;
  std::vector<uint16_t> bits;
};

TEST(Sparse, AddFindLargestIsAnAxpyAndItsLargest) {
  for (std::string_view isa : available_isas())
    for (size_t n : {1, 3, 8, 15, 16, 17, 63, 64, 65, 513}) {
      auto acc = numbers(n + 2, 1);
      const auto before = acc, x = numbers(n, 2);
      const size_t found = kernels_for(isa).add_find_largest(acc.data() + 1, x.data(), 0.7f, n);
      size_t expected = 0;
      for (size_t i = 0; i < n; ++i) {
        EXPECT_NEAR(acc[1 + i], double{before[1 + i]} + 0.7f * double{x[i]}, 1e-6);
        if (std::abs(acc[1 + i]) > std::abs(acc[1 + expected])) expected = i;
      }
      EXPECT_EQ(found, expected) << isa << " " << n;
      EXPECT_EQ(acc.front(), before.front());
      EXPECT_EQ(acc.back(), before.back());
    }
}

TEST(Sparse, OfEqualNumbersTheLowestIsFound) {
  for (std::string_view isa : available_isas()) {
    std::vector<float> acc(100, 0.0f), x(100, 0.0f);
    EXPECT_EQ(kernels_for(isa).add_find_largest(acc.data(), x.data(), 1, 100), 0u);
    acc[19] = acc[37] = 2;
    acc[3] = acc[98] = -2;
    EXPECT_EQ(kernels_for(isa).add_find_largest(acc.data(), x.data(), 1, 100), 3u);
    acc[3] = 0;
    EXPECT_EQ(kernels_for(isa).add_find_largest(acc.data(), x.data(), 1, 100), 19u);
  }
}

struct Case {
  size_t dim, pairs, chunks, count, queries;
};

constexpr Case kCases[] = {{16, 1, 1, 1, 1},  {64, 8, 1, 7, 4},  {48, 4, 2, 5, 3},
                           {128, 3, 4, 9, 5}, {80, 64, 1, 3, 8}, {112, 5, 2, 0, 2}};

/// Rows over 41 atoms, of which 17 are in the first table.
struct Problem {
  explicit Problem(const Case& c)
      : shape(c),
        first(kSplit * c.dim, 3),
        second((kAtoms - kSplit) * c.dim, 4),
        coefficients(c.count * c.chunks * c.pairs, 5),
        indices(coefficients.bits.size()) {
    std::mt19937 random(6);
    for (uint16_t& i : indices) i = static_cast<uint16_t>(random() % kAtoms);
  }
  AtomRows atoms() const { return {first.bits.data(), kSplit, second.bits.data(), shape.dim}; }
  SparseRows rows() const {
    return {indices.data(), coefficients.bits.data(), shape.pairs, shape.chunks};
  }
  double atom(size_t n, size_t c) const {
    return n < kSplit ? first.values[n * shape.dim + c]
                      : second.values[(n - kSplit) * shape.dim + c];
  }
  /// f(row, chunk, index, coefficient)
  template <class F>
  void each_pair(F&& f) const {
    for (size_t i = 0; i < indices.size(); ++i)
      f(i / shape.pairs / shape.chunks, i / shape.pairs % shape.chunks, size_t{indices[i]},
        double{coefficients.values[i]});
  }

  static constexpr size_t kAtoms = 41, kSplit = 17;
  Case shape;
  Halves first, second, coefficients;
  std::vector<uint16_t> indices;
};

TEST(Sparse, SumAtomsRebuildsRows) {
  for (const Case& c : kCases) {
    const Problem problem(c);
    const size_t width = c.chunks * c.dim;
    std::vector<double> expected(c.count * width);
    problem.each_pair([&](size_t t, size_t j, size_t n, double coefficient) {
      for (size_t k = 0; k < c.dim; ++k)
        expected[t * width + j * c.dim + k] += coefficient * problem.atom(n, k);
    });
    for (std::string_view isa : available_isas()) {
      std::vector<float> out(expected.size() + 1, 9);
      kernels_for(isa).sum_atoms(out.data(), problem.rows(), problem.atoms(), c.count);
      for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(out[i], expected[i], 1e-5) << isa;
      EXPECT_EQ(out.back(), 9);
    }
  }
}

TEST(Sparse, DotsAndSumsGoByAtom) {
  for (const Case& c : kCases) {
    const Problem problem(c);
    const size_t ld = c.count + 3, sums = c.chunks * Problem::kAtoms * c.queries;
    const auto dots = numbers(sums, 7), p = numbers(ld * c.queries, 8), start = numbers(sums, 9);
    std::vector<double> scores(ld * c.queries), expected(start.begin(), start.end());
    problem.each_pair([&](size_t t, size_t j, size_t n, double coefficient) {
      for (size_t m = 0; m < c.queries; ++m) {
        const size_t at = (j * Problem::kAtoms + n) * c.queries + m;
        scores[m * ld + t] += 0.5 * coefficient * dots[at];
        expected[at] += coefficient * p[m * ld + t];
      }
    });
    for (std::string_view isa : available_isas()) {
      std::vector<float> out(scores.size(), 9), acc = start;
      kernels_for(isa).sparse_dots(out.data(), ld, dots.data(), Problem::kAtoms, c.queries,
                                   problem.rows(), c.count, 0.5f);
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_NEAR(out[i], i % ld < c.count ? scores[i] : 9, 1e-5) << isa;
      kernels_for(isa).add_coefficients(acc.data(), Problem::kAtoms, p.data(), ld, c.queries,
                                        problem.rows(), c.count);
      for (size_t i = 0; i < acc.size(); ++i) ASSERT_NEAR(acc[i], expected[i], 1e-5) << isa;
    }
  }
}

}  // namespace
}  // namespace pith
