// Attention straight from codes, on every instruction set: against sums in double over the rows
// that the scalar table unpacks, and sums over sign bits to the last bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "core/dtype.h"
#include "kernels/kernels.h"
#include "machine.h"

namespace pith {
namespace {

using test::normals;

/// Random codes with f16 scales and minima, and the rows that they stand for.
struct Coded {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> numbers;
  std::vector<float> rows;  // [T, D]
  CodeRows view;
  CodeSides sides;

  enum class Kind { kBare, kSymmetric, kMinima };

  Coded(int bits, size_t dim, size_t count, Kind kind) {
    std::mt19937 random(static_cast<uint32_t>(dim + count));
    codes.resize(count * dim * static_cast<size_t>(bits) / 8);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random());
    view = {codes.data(), bits, dim};
    const auto x = normals(2 * count * ((dim + 31) / 32) + 1, 5);
    for (float v : x) numbers.push_back(f32_to_f16(v));
    sides = {kind == Kind::kBare ? nullptr : numbers.data(), kind == Kind::kMinima};
    rows.resize(count * dim);
    if (kind != Kind::kBare) {
      kernels_for("scalar").unpack_tokens(rows.data(), view, sides, count);
    } else {
      const std::vector<float> one(dim, 1), zero(dim, 0);
      kernels_for("scalar").unpack_channels(rows.data(), view, one.data(), zero.data(), count);
    }
  }
};

/// Byte products may lose 2^-16 of the largest factor for every term.
double rounding(std::string_view isa, double largest_factor, double terms) {
  return isa == "avx512_vnni" ? 0x1p-16 * largest_factor * terms : 0;
}

double largest(const float* x, size_t n) {
  float most = 0;
  for (size_t i = 0; i < n; ++i) most = std::max(most, std::abs(x[i]));
  return most;
}

template <class F>
void for_shapes(const F& f) {
  for (int bits : {2, 4, 8})
    for (size_t dim : {32, 64, 96, 128, 512})
      for (size_t count : {1, 17, 64, 150})
        for (size_t queries : {1, 2, 3, 4, 7}) f(bits, dim, count, queries);
}

TEST(Codes, DotsAreThoseOfTheUnpackedRows) {
  for_shapes([](int bits, size_t dim, size_t count, size_t queries) {
    const auto q = normals(queries * dim, 3);
    for (auto kind : {Coded::Kind::kBare, Coded::Kind::kSymmetric, Coded::Kind::kMinima}) {
      const Coded coded(bits, dim, count, kind);
      for (std::string_view isa : available_isas()) {
        const size_t ld = count + 3;
        std::vector<float> out(queries * ld, -7);
        kernels_for(isa).dot_codes(out.data(), ld, q.data(), queries, coded.view, coded.sides,
                                   count, 0.5f);
        for (size_t m = 0; m < queries; ++m) {
          for (size_t t = 0; t < count; ++t) {
            double sum = 0, size = 0, numbers = 0;
            for (size_t c = 0; c < dim; ++c) {
              const double term = double{q[m * dim + c]} * coded.rows[t * dim + c];
              sum += term;
              size += std::abs(term);
              numbers += std::abs(coded.rows[t * dim + c]);
            }
            const double lost = rounding(isa, largest(q.data() + m * dim, dim), numbers);
            // Codes and minima are summed apart: their parts may be larger than the whole.
            ASSERT_NEAR(out[m * ld + t], 0.5 * sum, 1e-5 + 4e-6 * size + lost / 2)
                << isa << " bits " << bits << " d " << dim << " n " << count;
          }
          for (size_t t = count; t < ld; ++t) ASSERT_EQ(out[m * ld + t], -7) << "past the end";
        }
      }
    }
  });
}

TEST(Codes, WeightedSumsAreThoseOfTheUnpackedRows) {
  for_shapes([](int bits, size_t dim, size_t count, size_t queries) {
    const auto p = normals(queries * count, 4), start = normals(queries * dim, 6);
    for (auto kind : {Coded::Kind::kSymmetric, Coded::Kind::kMinima}) {
      const Coded coded(bits, dim, count, kind);
      double scale = 0;  // the largest
      for (uint16_t x : coded.numbers) scale = std::max(scale, double{std::abs(f16_to_f32(x))});
      for (std::string_view isa : available_isas()) {
        auto acc = start;
        kernels_for(isa).add_codes(acc.data(), p.data(), count, queries, coded.view, coded.sides,
                                   count);
        for (size_t m = 0; m < queries; ++m) {
          const double factor = scale * largest(p.data() + m * count, count);
          const double lost = rounding(isa, factor, static_cast<double>(count) * ((1 << bits) - 1));
          for (size_t c = 0; c < dim; ++c) {
            double sum = start[m * dim + c], size = 0;
            for (size_t t = 0; t < count; ++t) {
              const double term = double{p[m * count + t]} * coded.rows[t * dim + c];
              sum += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(acc[m * dim + c], sum, 1e-5 + 8e-6 * size + lost)
                << isa << " bits " << bits << " d " << dim << " n " << count;
          }
        }
      }
    }
  });
}

TEST(Codes, RoundedFactorsAreNearAndWhatIsNotFiniteStaysSo) {
  const size_t dim = 128, count = 150, queries = 4;
  const auto p = normals(queries * count, 4);
  auto q = normals(queries * dim, 3);
  q[5] = 100;  // stands out, and the others are rounded by its measure
  for (int bits : {2, 4, 8}) {
    const Coded coded(bits, dim, count, Coded::Kind::kSymmetric);
    const auto run = [&](std::string_view isa) {
      std::vector<float> out(queries * (count + dim));
      kernels_for(isa).dot_codes(out.data(), count, q.data(), queries, coded.view, coded.sides,
                                 count, 1);
      kernels_for(isa).add_codes(out.data() + queries * count, p.data(), count, queries, coded.view,
                                 coded.sides, count);
      return out;
    };
    const auto expected = run("scalar");
    double size = 0;
    for (float x : expected) size += std::abs(x) / static_cast<double>(expected.size());
    for (std::string_view isa : available_isas()) {
      const auto got = run(isa);
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], expected[i], 4e-3 * size) << isa << " " << bits;
    }
  }
  const Coded coded(4, dim, count, Coded::Kind::kMinima);
  for (float bad : {NAN, INFINITY}) {
    q[dim + 7] = bad;
    for (std::string_view isa : available_isas()) {
      std::vector<float> out(queries * count);
      kernels_for(isa).dot_codes(out.data(), count, q.data(), queries, coded.view, coded.sides,
                                 count, 1);
      for (size_t i = 0; i < out.size(); ++i)
        ASSERT_EQ(std::isfinite(out[i]), i / count != 1) << isa << " " << i;
    }
  }
}

TEST(Codes, HadamardIsItsDefinition) {
  for (size_t n = 1; n <= 512; n *= 2) {
    const auto x = normals(n, static_cast<uint32_t>(n));
    std::vector<float> scalar(x.begin(), x.end());
    kernels_for("scalar").hadamard(scalar.data(), n);
    scalar.push_back(-7);
    for (std::string_view isa : available_isas()) {
      std::vector<float> out(n + 1, -7);
      std::copy(x.begin(), x.end(), out.begin());
      kernels_for(isa).hadamard(out.data(), n);
      for (size_t i = 0; i < n; ++i) {
        double sum = 0;
        for (size_t j = 0; j < n; ++j) sum += std::popcount(i & j) % 2 == 0 ? x[j] : -x[j];
        ASSERT_NEAR(out[i], sum / std::sqrt(double(n)), 1e-5) << isa << " n " << n << " at " << i;
      }
      ASSERT_EQ(out, scalar) << isa << ": pairs are added in one order";
    }
  }
}

TEST(Codes, SumsOverSignBitsAreTheSameToTheLastBitEverywhere) {
  std::mt19937 random(9);
  for (size_t bits : {16, 48, 128, 256, 512, 528, 1040}) {
    for (size_t count : {1, 33, 130}) {
      const size_t queries = 5, stride = bits / 8 + 2;
      const auto sketch = normals(queries * bits, 2);
      std::vector<uint8_t> rows(count * stride + 8);
      for (uint8_t& b : rows) b = static_cast<uint8_t>(random());
      std::vector<float> expected(queries * count), out(queries * count);
      kernels_for("scalar").sum_set_bits(expected.data(), count, sketch.data(), queries,
                                         rows.data(), stride, bits, count);
      for (std::string_view isa : available_isas()) {
        kernels_for(isa).sum_set_bits(out.data(), count, sketch.data(), queries, rows.data(),
                                      stride, bits, count);
        EXPECT_EQ(out, expected) << isa << " " << bits << " " << count;
      }
      for (size_t m = 0; m < queries; ++m) {
        double sum = 0;
        for (size_t i = 0; i < bits; ++i)
          if (rows[i / 8] >> (i % 8) & 1) sum += sketch[m * bits + i];
        EXPECT_NEAR(expected[m * count], sum, 1e-4);
      }
    }
  }
}

/// Random codes of 1 to 4 bits, rows further apart than their codes, and what they stand for.
struct Levelled {
  std::vector<uint8_t> codes;
  std::vector<float> levels, rows;  // [2^b], [T, D]
  LevelRows view;

  Levelled(int bits, size_t dim, size_t count, size_t more) {
    std::mt19937 random(static_cast<uint32_t>(dim + count));
    const size_t stride = dim * static_cast<size_t>(bits) / 8 + more;
    codes.resize(count * stride + 4);
    for (uint8_t& c : codes) c = static_cast<uint8_t>(random());
    levels = normals(size_t{1} << bits, 8);
    view = {codes.data(), bits, dim, stride, levels.data()};
    for (size_t t = 0; t < count; ++t)
      for (size_t c = 0; c < dim; ++c) {
        size_t code = 0;
        for (size_t i = c * static_cast<size_t>(bits), b = 0; b < static_cast<size_t>(bits); ++b)
          code += static_cast<size_t>(codes[t * stride + (i + b) / 8] >> ((i + b) % 8) & 1) << b;
        rows.push_back(levels[code]);
      }
  }
};

template <class F>
void for_levels(const F& f) {
  for (int bits : {1, 2, 3, 4})
    for (size_t dim : {32, 64, 96, 128, 512})
      for (size_t count : {1, 17, 64, 150})
        for (size_t queries : {1, 4, 7}) f(Levelled(bits, dim, count, count % 3), count, queries);
}

TEST(Levels, DotsAndWeightedSumsAreThoseOfTheLevels) {
  for_levels([](const Levelled& x, size_t count, size_t queries) {
    const size_t dim = x.view.dim, ld = count + 3;
    const auto q = normals(queries * dim, 3), p = normals(queries * ld, 4);
    const auto start = normals(queries * dim, 6);
    for (std::string_view isa : available_isas()) {
      std::vector<float> out(queries * ld, -7);
      kernels_for(isa).dot_levels(out.data(), ld, q.data(), queries, x.view, count, 0.5f);
      auto acc = start;
      kernels_for(isa).add_levels(acc.data(), p.data(), ld, queries, x.view, count);
      for (size_t m = 0; m < queries; ++m) {
        std::vector<double> sums(start.begin() + static_cast<ptrdiff_t>(m * dim),
                                 start.begin() + static_cast<ptrdiff_t>((m + 1) * dim));
        for (size_t t = 0; t < count; ++t) {
          double dot = 0;
          for (size_t c = 0; c < dim; ++c) {
            dot += double{q[m * dim + c]} * x.rows[t * dim + c];
            sums[c] += double{p[m * ld + t]} * x.rows[t * dim + c];
          }
          ASSERT_NEAR(out[m * ld + t], 0.5 * dot, 2e-4)
              << isa << " bits " << x.view.bits << " d " << dim << " n " << count;
        }
        for (size_t t = count; t < ld; ++t) ASSERT_EQ(out[m * ld + t], -7) << "past the end";
        for (size_t c = 0; c < dim; ++c)
          ASSERT_NEAR(acc[m * dim + c], sums[c], 2e-4)
              << isa << " bits " << x.view.bits << " d " << dim << " n " << count;
      }
    }
  });
}

TEST(Levels, UnpackingScalesAndShiftsByChannel) {
  for (int bits : {1, 2, 3, 4})
    for (size_t dim : {16, 48, 64, 80, 208}) {
      const size_t count = 5;
      const Levelled x(bits, dim, count, 1);
      const auto scale = normals(dim, 3), low = normals(dim, 4);
      for (std::string_view isa : available_isas()) {
        std::vector<float> out(count * dim + 1, -7);
        kernels_for(isa).unpack_levels(out.data(), x.view, scale.data(), low.data(), count);
        for (size_t i = 0; i < count * dim; ++i)
          ASSERT_EQ(out[i], std::fma(scale[i % dim], x.rows[i], low[i % dim])) << isa;
        EXPECT_EQ(out.back(), -7);
      }
    }
}

}  // namespace
}  // namespace pith
