// Planes of signs and the sketch of what they leave: codes against nearest sums found here, known
// distortions, unbiased scores whatever the planes, packed sums against decoded rows.

#include "rows/cpu/plane_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "core/dtype.h"
#include "machine.h"
#include "pith/error.h"
#include "policy/registry.h"
#include "rows/cpu/test_coded_rows.h"

namespace pith {
namespace {

using test::decoded;
using test::dot;
using test::Machine;
using test::normals;
using test::rows_of;
using test::scores_of;

constexpr size_t kDim = 64;

std::unique_ptr<CodedRows> make(const Machine& machine, const PlaneFormat& format,
                                uint64_t seed = 1, size_t dim = kDim) {
  return rows_of(machine, PlaneCodec(format), dim, seed);
}

/// H x from the definition, in blocks of powers of two.
std::vector<double> turned(const double* x, size_t dim) {
  std::vector<double> y(dim);
  for (size_t first = 0; first < dim;) {
    const size_t n = std::bit_floor(dim - first);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j)
        y[first + i] += (std::popcount(i & j) % 2 ? -1.0 : 1.0) * x[first + j] / std::sqrt(n);
    first += n;
  }
  return y;
}

/// As qjl has it: whole rows with scales of 8 bits.
PlaneFormat tight(int planes) {
  return {.planes = planes, .bits = 0, .whole_rows = true, .random_turn = true, .tight = true};
}

std::vector<PlaneFormat> formats() {
  return {{1, Sketch::kOrtho, 0},
          {2, Sketch::kOrtho, 0},
          {3, Sketch::kOrtho, 0},
          {4, Sketch::kOrtho, 0},
          {1, Sketch::kGaussian, 48},
          {2, Sketch::kOrtho, {}},
          tight(2),
          tight(3),
          tight(4)};
}

TEST(PlaneRows, NumbersAreTheNearestSumsOfSignsTimesTheScaleThatFits) {
  for (int planes : {1, 2, 3, 4})
    for (size_t dim : {64, 96}) {
      const PlaneFormat format{planes, Sketch::kOrtho, 0};
      std::vector<double> levels;
      for (int code = 0; code < 1 << planes; ++code) {
        double level = 0;
        for (int i = 0; i < planes; ++i)
          level += (code >> i & 1 ? 1 : -1) * double{format.weight(i)};
        levels.push_back(level);
      }
      const Machine machine;
      const auto rows = make(machine, format, 1, dim);
      const auto x = normals(9 * dim, 3);
      rows->append(x.data(), dim, 9);
      const auto got = decoded(*rows);
      for (size_t t = 0; t < 9; ++t) {
        const std::vector<double> row(x.begin() + static_cast<ptrdiff_t>(t * dim),
                                      x.begin() + static_cast<ptrdiff_t>((t + 1) * dim));
        const auto y = turned(row.data(), dim);
        double square = 0, with = 0, own = 0;
        for (double v : y) square += v * v;
        std::vector<double> code(dim);
        for (size_t c = 0; c < dim; ++c) {
          const double u = y[c] * std::sqrt(static_cast<double>(dim) / square);
          code[c] = levels[0];
          for (double l : levels)
            if (std::abs(u - l) < std::abs(u - code[c])) code[c] = l;
          with += code[c] * y[c];
          own += code[c] * code[c];
        }
        for (double& v : code) v *= with / own;
        const auto expected = turned(code.data(), dim);  // its own inverse
        for (size_t c = 0; c < dim; ++c)
          ASSERT_NEAR(got[t * dim + c], expected[c], 4e-3) << planes << " planes";
      }
    }
}

// <x, decoded x> is |x|^2 where rows are whole, and what fits best is shorter by its squared error.
TEST(PlaneRows, WholeRowsAreAsLongAlongThemselves) {
  constexpr size_t kRows = 40;
  auto x = normals(kRows * kDim, 12);
  std::fill_n(x.begin() + 7 * kDim, kDim, 0.0f);  // a row of nothing stays one
  std::fill_n(x.begin() + 9 * kDim, kDim, 1.5f);  // the transform makes one number of this
  for (int planes : {1, 2, 3, 4})
    for (const bool whole : {true, false}) {
      PlaneFormat format{planes, Sketch::kOrtho, 0};
      format.whole_rows = whole;
      const Machine machine;
      const auto rows = make(machine, format, 1, kDim);
      rows->append(x.data(), kDim, kRows);
      const auto got = decoded(*rows);
      for (size_t t = 0; t < kRows; ++t) {
        double along = 0, square = 0, error = 0;
        for (size_t c = t * kDim; c < (t + 1) * kDim; ++c) {
          along += double{x[c]} * got[c];
          square += double{x[c]} * x[c];
          error += std::pow(double{x[c]} - got[c], 2.0);
        }
        ASSERT_LE(error, 1.001 * square) << planes << " planes";
        if (t != 9) {
          ASSERT_NEAR(along, whole ? square : square - error, 2e-3 * square) << planes << " planes";
        }
        if (t == 7) {
          ASSERT_EQ(error, 0) << planes << " planes";
        }
      }
    }
}

TEST(PlaneRows, DistortionsAreTheKnownOnes) {
  // Of normal numbers: Lloyd and Max for 1 and 2 bits, the best even steps for 3 and 4 (Max 1960).
  const double known[] = {0.3634, 0.1175, 0.03744, 0.01154};
  const size_t dim = 256;  // with few numbers a scale per row leaves out more of the tails
  const auto x = normals(1024 * dim, 4);
  for (int planes : {1, 2, 3, 4}) {
    const Machine machine;
    const auto rows = make(machine, {planes, Sketch::kOrtho, 0}, 1, dim);
    rows->append(x.data(), dim, 1024);
    const auto got = decoded(*rows);
    double error = 0;
    for (size_t i = 0; i < x.size(); ++i) error += std::pow(got[i] - x[i], 2.0);
    error /= static_cast<double>(x.size());
    EXPECT_LT(error, 1.01 * known[planes - 1]);
    EXPECT_GT(error, 0.96 * known[planes - 1]);
  }
}

// A scale of 8 bits is up to 6% off, which neither length nor distortion may show: 0.1175, 0.03454
// and 0.009497 are Lloyd and Max's, divided by 1 less themselves for rows that lose no length.
TEST(PlaneRows, TightRowsAreAsLongAsTheyWereAndNoWorse) {
  const double known[] = {0.1175, 0.03454, 0.009497};
  const size_t dim = 256, count = 256;
  auto x = normals(count * dim, 21);
  for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(0.01f * static_cast<float>(i / dim));
  for (int planes : {2, 3, 4}) {
    const Machine machine;
    const auto rows = make(machine, tight(planes), 1, dim);
    rows->append(x.data(), dim, count);
    const auto got = decoded(*rows);
    double errors = 0;
    for (size_t t = 0; t < count; ++t) {
      double along = 0, square = 0, error = 0;
      for (size_t c = t * dim; c < (t + 1) * dim; ++c) {
        along += double{x[c]} * got[c];
        square += double{x[c]} * x[c];
        error += std::pow(double{x[c]} - got[c], 2.0);
      }
      ASSERT_NEAR(along / square, 1, 5e-3) << planes << " planes, row " << t;
      errors += error / square / count;
    }
    const double whole = known[planes - 2] / (1 - known[planes - 2]);
    EXPECT_GT(errors, 0.96 * whole) << planes;
    EXPECT_LT(errors, 1.04 * whole) << planes;
  }
}

TEST(PlaneRows, TightRowsOfNothingStayOneAndLargeOnesAreFinite) {
  const Machine machine;
  const auto rows = make(machine, tight(3));
  std::vector<float> x(3 * kDim);
  std::fill_n(x.begin() + kDim, kDim, 8000.0f);
  std::fill_n(x.begin() + 2 * kDim, kDim, 1e-7f);
  rows->append(x.data(), kDim, 3);
  const auto got = decoded(*rows);
  double along = 0;
  for (size_t c = 0; c < kDim; ++c) {
    EXPECT_EQ(got[c], 0);
    along += got[kDim + c] / 8000 / kDim;
    EXPECT_LT(std::abs(got[2 * kDim + c]), 1e-6);
  }
  EXPECT_NEAR(along, 1, 0.02);
}

/// Mean squared error and the worst z of a row's mean error over `seeds` sketches.
std::pair<double, double> moments(const PlaneFormat& format, const std::vector<float>& k,
                                  const std::vector<float>& q, int seeds) {
  const Machine machine;
  const size_t count = k.size() / kDim;
  std::vector<double> sum(count), square(count);
  for (int seed = 0; seed < seeds; ++seed) {
    const auto rows = make(machine, format, static_cast<uint64_t>(seed));
    rows->append(k.data(), kDim, count);
    const auto got = scores_of(*rows, q, 1);
    for (size_t t = 0; t < count; ++t) {
      const double e = got[t] - dot(q.data(), k.data() + t * kDim, kDim);
      sum[t] += e;
      square[t] += e * e;
    }
  }
  double variance = 0, worst = 0;
  for (size_t t = 0; t < count; ++t) {
    const double mean = sum[t] / seeds, v = square[t] / seeds - mean * mean;
    variance += square[t] / seeds / static_cast<double>(count);
    worst = std::max(worst, std::abs(mean) / std::sqrt(v / seeds));
  }
  return {variance, worst};
}

TEST(PlaneRows, ScoresAreUnbiasedOverTheSketch) {
  const auto k = normals(32 * kDim, 5), q = normals(kDim, 6);
  for (int planes : {1, 2})
    for (Sketch sketch : {Sketch::kGaussian, Sketch::kOrtho})
      EXPECT_LT(moments({planes, sketch, 64}, k, q, 300).second, 4.0) << planes;
  // The planes alone are not: the rest that the sketch would code is a fixed error.
  EXPECT_GT(moments({2, Sketch::kOrtho, 0}, k, q, 2).first, 0.1);
}

// With no sketch: whole rows, of which a random half of the numbers changed sign before the turn.
TEST(PlaneRows, PlanesAloneAreUnbiasedOverTheirSigns) {
  const auto k = normals(32 * kDim, 5), q = normals(kDim, 6);
  for (int planes : {1, 2, 3}) {
    PlaneFormat format{planes, Sketch::kOrtho, 0};
    format.random_turn = true;
    if (planes < 3) {
      EXPECT_GT(moments(format, k, q, 300).second, 4.0) << planes;
    }
    format.whole_rows = true;
    const auto [noise, worst] = moments(format, k, q, 300);
    EXPECT_LT(worst, 4.0) << planes;
    // 1 / (1 - e) - 1 of |k|^2 |q|^2 / D for codes that leave e of a row.
    const double left[] = {0.3634, 0.1175, 0.03744};
    const double e = left[planes - 1], size = dot(q.data(), q.data(), kDim);
    EXPECT_NEAR(noise / (size * e / (1 - e)), 1, 0.15) << planes;
    if (planes == 1) continue;
    const auto [tight_noise, tight_worst] = moments(tight(planes), k, q, 300);
    EXPECT_LT(tight_worst, 4.0) << planes;
    const double max = planes == 3 ? 0.03454 : e;
    EXPECT_NEAR(tight_noise / (size * max / (1 - max)), 1, 0.15) << planes;
  }
}

TEST(PlaneRows, NoiseFollowsWhatThePlanesLeave) {
  // E|r|^2 is 0.1175 |k|^2 with two planes: the noise must fall to about that of one part in 8.5.
  const auto k = normals(32 * kDim, 7), q = normals(kDim, 8);
  const double one = moments({1, Sketch::kOrtho, 64}, k, q, 100).first;
  const double two = moments({2, Sketch::kOrtho, 64}, k, q, 100).first;
  EXPECT_NEAR(two / one, 0.1175 / 0.3634, 0.05);
}

TEST(PlaneRows, ScoresAreThoseOfTheDecodedRows) {
  for (std::string_view isa : available_isas())
    for (size_t dim : {64, 80, 128})
      for (const PlaneFormat& format : formats()) {
        const Machine machine{std::string(isa)};
        const auto rows = make(machine, format, 3, dim);
        const size_t count = 37, queries = 5, first = 3;
        const auto k = normals(count * dim, 10), q = normals(queries * dim, 11);
        rows->append(k.data(), dim, count);
        const auto x = decoded(*rows);
        std::vector<float> prepared(rows->prepared_size(queries)), got(queries * count);
        rows->prepare(prepared.data(), q.data(), queries);
        rows->scores(got.data(), count, q.data(), prepared.data(), queries, first, count - first,
                     0.5f);
        for (size_t m = 0; m < queries; ++m)
          for (size_t t = 0; t + first < count; ++t)
            ASSERT_NEAR(got[m * count + t],
                        dot(q.data() + m * dim, x.data() + (t + first) * dim, dim) / 2, 2e-3)
                << isa << " d" << dim << " row " << t;
      }
}

TEST(PlaneRows, SumsAreThoseOfTheDecodedRows) {
  for (size_t dim : {64, 80}) {
    const Machine machine;
    const auto rows = make(machine, {3, Sketch::kOrtho, 0}, 3, dim);
    const size_t count = 77, queries = 3, first = 2;
    const auto v = normals(count * dim, 12), p = normals(queries * count, 13);
    rows->append(v.data(), dim, count);
    const auto x = decoded(*rows);
    std::vector<float> sums(queries * rows->accumulator_width()), got(queries * dim, 1.0f);
    rows->accumulate(sums.data(), p.data(), count, queries, first, count - first);
    rows->finish(got.data(), sums.data(), queries);
    for (size_t m = 0; m < queries; ++m)
      for (size_t c = 0; c < dim; ++c) {
        double sum = 1;
        for (size_t t = first; t < count; ++t)
          sum += double{p[m * count + t - first]} * x[t * dim + c];
        ASSERT_NEAR(got[m * dim + c], sum, 1e-3);
      }
  }
}

TEST(PlaneRows, CompactionMovesCodesAndArrivalChangesNothing) {
  std::mt19937 random(14);
  for (const PlaneFormat& format : formats()) {
    const Machine machine;
    const auto rows = make(machine, format), single = make(machine, format);
    for (uint32_t round = 0; round < 6; ++round) {
      const size_t count = random() % 70;
      const auto k = normals(count * kDim, 20 + round);
      rows->append(k.data(), kDim, count);
      for (size_t t = 0; t < count; ++t) single->append(k.data() + t * kDim, kDim, 1);
      const auto before = decoded(*rows);
      ASSERT_EQ(decoded(*single), before);
      std::vector<uint32_t> kept;
      for (uint32_t t = 0; t < rows->rows(); ++t)
        if (random() % 4 != 0) kept.push_back(t);
      const auto copy = rows->clone();
      rows->keep(kept);
      single->keep(kept);
      const auto after = decoded(*rows);
      for (size_t i = 0; i < after.size(); ++i)
        ASSERT_EQ(after[i], before[kept[i / kDim] * kDim + i % kDim]);
      ASSERT_EQ(decoded(*copy), before);
    }
  }
}

TEST(PlaneRows, BytesAreWhatTheFormatSays) {
  for (const PlaneFormat& format : formats()) {
    const Machine machine;
    const PlaneCodec codec(format);
    RowsRequest request;
    request.dim = 128;
    const auto rows = codec.make_rows(machine.context, request);
    const auto k = normals(64 * 128, 15);
    rows->append(k.data(), 128, 64);
    const size_t m = format.bits.value_or(128);
    EXPECT_EQ(rows->payload_bytes(),
              64 * ((128 * static_cast<size_t>(format.planes) + m) / 8 + format.tight));
    EXPECT_EQ(rows->metadata_bytes(), format.tight ? 0 : 64 * (m ? 4 : 2));
    EXPECT_EQ(static_cast<double>(rows->payload_bytes() + rows->metadata_bytes()),
              64 * codec.bytes_per_row(128));
    EXPECT_EQ(codec.shared_bytes(), machine.memory.bytes(MemoryKind::kShared));
  }
}

TEST(PlaneRows, WhatCannotBeIsRefused) {
  const Machine machine;
  EXPECT_THROW(make(machine, {2, Sketch::kOrtho, 40}), Error);
  EXPECT_THROW(make(machine, {2, Sketch::kHadamard, {}}, 1, 96), Error);
  for (float bad : {NAN, INFINITY, 1e30f}) {
    const auto rows = make(machine, {2, Sketch::kOrtho, 64});
    auto x = normals(4 * kDim, 16);
    x[2 * kDim] = bad;
    EXPECT_THROW(rows->append(x.data(), kDim, 4), Error);
    EXPECT_EQ(rows->rows(), 0u);
  }
  const CodecRow& row = codec_row("qjl");
  const auto refused = [&](const std::map<std::string, std::string>& parameters) {
    EXPECT_THROW(row.make(row.read({"qjl", parameters}), Side::kKeys), Error);
  };
  refused({{"residual", "5"}});
  refused({{"residual", "1"}, {"outliers", "8"}});
  refused({{"residual", "1"}, {"m_out", "64"}});
  // Nothing would be drawn, and nothing taken off.
  refused({{"sketch", "gaussian"}});
  refused({{"unbias", "true"}});
  refused({{"m", "64"}, {"unbias", "true"}, {"slack", "0.1"}});
}

}  // namespace
}  // namespace pith
