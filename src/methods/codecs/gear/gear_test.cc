// GEAR: the product against the best one of its rank (from eigenvalues found here), the sum of the
// three parts against codes made here, what each part is for, compaction bit for bit, bytes.

#include "methods/codecs/gear/gear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/dtype.h"
#include "machine.h"
#include "methods/codecs/gear/gear_rows.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Machine;

/// Rows that share two directions, noise, and a number that stands out now and then.
std::vector<float> rows_of(size_t count, size_t dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count * dim);
  for (size_t t = 0; t < count; ++t) {
    const float a = 2 * normal(random), b = normal(random);
    for (size_t c = 0; c < dim; ++c) {
      const auto f = static_cast<float>(c);
      x[t * dim + c] = 0.5f * normal(random) + a * std::sin(f) + b * std::cos(3 * f);
      if (random() % 100 == 0) x[t * dim + c] *= 8;
    }
  }
  return x;
}

std::unique_ptr<CodedRows> make(const Machine& machine, const GearFormat& format, size_t dim) {
  RowsRequest request;
  request.side = format.side;
  request.dim = dim;
  request.seed = 3;
  return GearCodec(format).make_rows(machine.context, request);
}

std::vector<float> decoded(const CodedRows& rows) {
  std::vector<float> x(rows.rows() * rows.dim());
  rows.decode(x.data(), 0, rows.rows());
  return x;
}

std::vector<GearFormat> formats() {
  std::vector<GearFormat> all;
  for (int bits : {2, 4})
    for (size_t rank : {0, 2, 5})
      for (size_t outliers : {0, 2})
        for (Side side : {Side::kKeys, Side::kValues})
          all.push_back({bits, rank, outliers, rank == 5 ? size_t{64} : size_t{128}, side});
  return all;
}

double squares(const std::vector<float>& x) {
  double sum = 0;
  for (float v : x) sum += double{v} * v;
  return sum;
}

/// Eigenvalues of x^T x, largest first: Jacobi rotations.
std::vector<double> spectrum(const std::vector<float>& x, size_t n, size_t dim) {
  std::vector<double> g(dim * dim);
  for (size_t t = 0; t < n; ++t)
    for (size_t a = 0; a < dim; ++a)
      for (size_t b = 0; b < dim; ++b) g[a * dim + b] += double{x[t * dim + a]} * x[t * dim + b];
  for (int sweep = 0; sweep < 12; ++sweep)
    for (size_t p = 0; p < dim; ++p)
      for (size_t q = p + 1; q < dim; ++q) {
        if (std::abs(g[p * dim + q]) < 1e-12) continue;
        const double theta = 0.5 * std::atan2(2 * g[p * dim + q], g[p * dim + p] - g[q * dim + q]);
        const double c = std::cos(theta), s = std::sin(theta);
        for (size_t k = 0; k < dim; ++k) {
          const double a = g[p * dim + k], b = g[q * dim + k];
          g[p * dim + k] = c * a + s * b;
          g[q * dim + k] = c * b - s * a;
        }
        for (size_t k = 0; k < dim; ++k) {
          const double a = g[k * dim + p], b = g[k * dim + q];
          g[k * dim + p] = c * a + s * b;
          g[k * dim + q] = c * b - s * a;
        }
      }
  std::vector<double> values(dim);
  for (size_t i = 0; i < dim; ++i) values[i] = g[i * dim + i];
  std::sort(values.rbegin(), values.rend());
  return values;
}

TEST(Gear, TheProductIsNearlyTheBestOfItsRank) {
  for (size_t n : {32, 128})
    for (size_t rank : {1, 2, 4}) {
      const size_t dim = 48;
      const auto x = rows_of(n, dim, 4);
      const auto best = spectrum(x, n, dim);
      double left = 0;
      for (size_t i = rank; i < dim; ++i) left += best[i];
      const LowRank factors = low_rank(x, n, dim, rank, Philox(1, 2, 3));
      auto residual = x;
      for (size_t t = 0; t < n; ++t)
        for (size_t j = 0; j < rank; ++j)
          for (size_t c = 0; c < dim; ++c)
            residual[t * dim + c] -= factors.left[t * rank + j] * factors.right[j * dim + c];
      EXPECT_GT(squares(residual), 0.999 * left);
      EXPECT_LT(squares(residual), 1.02 * left) << n << " rank " << rank;
    }
  // Less than the rank asked for, and nothing at all.
  std::vector<float> flat(32 * 16, 1.0f), none(32 * 16);
  for (const auto* x : {&flat, &none}) {
    const LowRank factors = low_rank(*x, 32, 16, 3, Philox(1, 0, 0));
    for (float v : factors.left) ASSERT_TRUE(std::isfinite(v));
    double sum = 0;
    for (size_t j = 0; j < 3; ++j) sum += factors.left[3 + j] * factors.right[j * 16 + 5];
    EXPECT_NEAR(sum, (*x)[0], 1e-5);
  }
}

TEST(Gear, WithoutProductAndOutliersRowsAreKivis) {
  for (Side side : {Side::kKeys, Side::kValues})
    for (const char* bits : {"2", "4"}) {
      const Machine machine;
      const auto rows = make(machine, {bits[0] - '0', 0, 0, 128, side}, 64);
      const CodecRow& kivi = codec_row("kivi");
      RowsRequest request;
      request.side = side;
      request.dim = 64;
      const auto codec = kivi.make(kivi.read({"kivi", {{"bits", bits}}}), side);
      const auto expected = codec->make_rows(machine.context, request);
      auto x = rows_of(256, 64, 5);
      rows->append(x.data(), 64, 256);
      for (float& v : x) v = f16_to_f32(f32_to_f16(v));  // rows wait in f16
      expected->append(x.data(), 64, 256);
      EXPECT_EQ(decoded(*rows), decoded(*expected));
    }
}

TEST(Gear, WhatIsDecodedIsCodesPlusProductAndNumbersApart) {
  // With the group's numbers apart known (they come back as f16), the rest of the residual against
  // rank-0 rows of the same outliers has rank r, and is the best such.
  for (Side side : {Side::kKeys, Side::kValues}) {
    const size_t n = 128, dim = 48, rank = 2;
    const Machine machine;
    const auto with = make(machine, {2, rank, 2, n, side}, dim);
    const auto without = make(machine, {2, 0, 2, n, side}, dim);
    const auto x = rows_of(n, dim, 6);
    with->append(x.data(), dim, n);
    without->append(x.data(), dim, n);
    const auto a = decoded(*with), b = decoded(*without);
    std::vector<float> missed(n * dim), added(n * dim), left(n * dim);
    size_t apart = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      const float exact = f16_to_f32(f32_to_f16(x[i]));
      // Numbers apart come back but for the rounding of what the codes miss.
      const auto same = [&](float got) { return std::abs(got - exact) < 1e-3 * std::abs(exact); };
      apart += same(a[i]) && same(b[i]);
      missed[i] = exact - b[i];
      left[i] = exact - a[i];
    }
    EXPECT_GE(apart, 2 * n);
    const auto best = spectrum(missed, n, dim);
    double optimum = 0;
    for (size_t i = rank; i < dim; ++i) optimum += best[i];
    // Numbers apart are put back exactly, so the error may lie below the optimum of rank r.
    EXPECT_LT(squares(left), 1.03 * optimum);
    EXPECT_GT(squares(left), 0.9 * optimum);
  }
}

TEST(Gear, EachPartMakesTheErrorSmaller) {
  const auto x = rows_of(256, 64, 7);
  for (Side side : {Side::kKeys, Side::kValues}) {
    const auto error = [&](size_t rank, size_t outliers) {
      const Machine machine;
      const auto rows = make(machine, {2, rank, outliers, 128, side}, 64);
      rows->append(x.data(), 64, 256);
      const auto got = decoded(*rows);
      double sum = 0;
      for (size_t i = 0; i < got.size(); ++i) sum += (got[i] - x[i]) * (got[i] - x[i]);
      return std::sqrt(sum / squares(x));
    };
    EXPECT_LT(error(2, 0), 0.98 * error(0, 0));
    EXPECT_LT(error(0, 2), 0.9 * error(0, 0));
    EXPECT_LT(error(2, 2), 0.98 * error(0, 2));
    EXPECT_LT(error(8, 2), error(2, 2));
  }
}

TEST(Gear, ScoresAndSumsAreThoseOfTheDecodedRows) {
  for (const GearFormat& f : formats())
    for (size_t dim : {64, 80})
      for (std::string_view isa : available_isas()) {
        const Machine machine{isa};
        RowsRequest request;
        request.side = f.side;
        request.dim = dim;
        const auto rows = GearCodec(f).make_rows(machine.context, request);
        const size_t count = 300, first = 5, n = count - first, queries = 5;  // some rows wait
        const auto x = rows_of(count, dim, 13);
        rows->append(x.data(), dim, count);
        const auto got = decoded(*rows);
        const auto q = test::normals(queries * dim, 14), p = test::normals(queries * n, 15);
        std::vector<float> prepared(rows->prepared_size(queries)), scores(queries * n);
        std::vector<float> sums(queries * dim), out(queries * dim, 1.0f);
        rows->prepare(prepared.data(), q.data(), queries);
        rows->scores(scores.data(), n, q.data(), prepared.data(), queries, first, n, 0.5f);
        rows->accumulate(sums.data(), p.data(), n, queries, first, n);
        rows->finish(out.data(), sums.data(), queries);
        for (size_t m = 0; m < queries; ++m) {
          std::vector<double> expected(dim, 1.0);
          for (size_t t = 0; t < n; ++t) {
            double dot = 0;
            for (size_t c = 0; c < dim; ++c) {
              const double v = got[(first + t) * dim + c];
              dot += q[m * dim + c] * v;
              expected[c] += p[m * n + t] * v;
            }
            ASSERT_NEAR(scores[m * n + t], dot / 2, 5e-3) << isa << " d" << dim << " row " << t;
          }
          for (size_t c = 0; c < dim; ++c)
            ASSERT_NEAR(out[m * dim + c], expected[c], 2e-2) << isa << " d" << dim;
        }
      }
}

TEST(Gear, CompactionMovesCodesAndChangesNone) {
  std::mt19937 random(12);
  for (const GearFormat& f : formats()) {
    const Machine machine;
    const auto rows = make(machine, f, 64);
    size_t waiting = 0;
    for (uint32_t round = 0; round < 8; ++round) {
      // No row waits, except in the last round.
      size_t count = f.group_rows * (1 + random() % 2);
      if (round == 7) count += 50, waiting = 50;
      const auto x = rows_of(count, 64, 20 + round);
      rows->append(x.data(), 64, count);
      const auto before = decoded(*rows);
      std::vector<uint32_t> kept;
      for (uint32_t t = 0; t < rows->rows(); ++t)
        if (random() % 3 != 0 && round != 4 && (round != 5 || t > 200)) kept.push_back(t);
      const auto copy = rows->clone();
      rows->keep(kept);
      const auto after = decoded(*rows);
      for (size_t i = 0; i < kept.size() * 64; ++i)
        ASSERT_EQ(after[i], before[kept[i / 64] * 64 + i % 64]) << round;
      ASSERT_EQ(decoded(*copy), before);
      std::vector<float> one(64);
      for (size_t t = 0; t < kept.size(); t += 7) {
        rows->decode(one.data(), t, 1);
        for (size_t c = 0; c < 64; ++c) ASSERT_EQ(one[c], after[t * 64 + c]);
      }
    }
    EXPECT_EQ(waiting, 50u);
  }
}

TEST(Gear, RowsOneByOneAreRowsAtOnce) {
  for (const GearFormat& f : formats()) {
    const Machine machine;
    const auto one = make(machine, f, 80), all = make(machine, f, 80);
    const auto x = rows_of(150, 80, 8);
    all->append(x.data(), 80, 150);
    for (size_t t = 0; t < 150; ++t) one->append(x.data() + t * 80, 80, 1);
    EXPECT_EQ(decoded(*one), decoded(*all));
  }
}

TEST(Gear, BytesAreWhatTheFormatSays) {
  for (const GearFormat& f : formats())
    for (size_t dim : {64, 128}) {
      const Machine machine;
      const auto rows = make(machine, f, dim);
      const auto x = rows_of(256, dim, 9);
      rows->append(x.data(), dim, 256);
      const auto bits = static_cast<size_t>(f.bits);
      const size_t scales = f.side == Side::kKeys ? 256 / 32 * (4 * dim + 4) : 256 * dim / 32 * 4;
      const size_t groups = 256 / f.group_rows;
      const size_t total = 256 * (dim * bits / 8 + 3 * f.outliers + 2 * f.rank) + scales +
                           groups * (2 * f.rank * dim + 4);
      EXPECT_EQ(rows->payload_bytes() + rows->metadata_bytes(), total);
      EXPECT_EQ(rows->allocated_bytes(), machine.memory.bytes(MemoryKind::kPayload) +
                                             machine.memory.bytes(MemoryKind::kMetadata));
      EXPECT_DOUBLE_EQ(256 * GearCodec(f).bytes_per_row(dim), static_cast<double>(total));
    }
}

TEST(Gear, WhatCannotBeIsRefused) {
  const Machine machine;
  EXPECT_THROW(make(machine, {2, 2, 64, 128, Side::kKeys}, 64), Error);
  EXPECT_THROW(make(machine, {2, 65, 1, 128, Side::kKeys}, 64), Error);
  EXPECT_THROW(make(machine, {2, 2, 1, 100, Side::kKeys}, 64), Error);
  EXPECT_THROW(make(machine, {2, 2, 1, 128, Side::kKeys}, 512), Error);
  for (float bad : {NAN, INFINITY, 1e30f}) {
    const auto rows = make(machine, {2, 2, 1, 128, Side::kValues}, 64);
    auto x = rows_of(160, 64, 11);
    x[140 * 64 + 3] = bad;
    EXPECT_THROW(rows->append(x.data(), 64, 160), Error) << bad;
  }
}

}  // namespace
}  // namespace pith
