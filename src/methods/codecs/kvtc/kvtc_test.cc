// Transform coding: eigenvectors, levels and the spreading of bits against their definitions; rows
// against the error that theory gives for normal numbers, at all variances and bits; keys through
// RoPE; bytes, and rows that come and go.

#include "methods/codecs/kvtc/kvtc.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "core/dtype.h"
#include "methods/codecs/kvtc/eigen.h"
#include "methods/codecs/kvtc/normal_levels.h"
#include "methods/codecs/kvtc/transform_rows.h"
#include "methods/codecs/kvtc/transform_tables.h"
#include "methods/methods.h"
#include "pith/error.h"
#include "rows/cpu/dense.h"
#include "rows/cpu/row_store.h"
#include "rows/cpu/test_coded_rows.h"

namespace pith {
namespace {

using test::decoded;
using test::Machine;

std::unique_ptr<CodedRows> make(const Machine& machine, const TransformFormat& format, size_t dim) {
  return test::rows_of(machine, TransformCodec(format, Side::kKeys), dim);
}

/// Random orthonormal vectors [dim, dim].
std::vector<double> turn_of(size_t dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<double> v(dim * dim);
  for (size_t i = 0; i < dim; ++i) {
    double* row = v.data() + i * dim;
    for (size_t c = 0; c < dim; ++c) row[c] = normal(random);
    for (int twice = 0; twice < 2; ++twice)
      for (size_t j = 0; j < i; ++j) {
        const double along = std::inner_product(row, row + dim, v.data() + j * dim, 0.0);
        for (size_t c = 0; c < dim; ++c) row[c] -= along * v[j * dim + c];
      }
    const double length = std::sqrt(std::inner_product(row, row + dim, row, 0.0));
    for (size_t c = 0; c < dim; ++c) row[c] /= length;
  }
  return v;
}

/// Normal rows around a constant, of deviation 8 * 2^(-8 i / D) along direction i of their own.
std::vector<float> rows_of(size_t count, size_t dim, uint32_t seed) {
  const auto turn = turn_of(dim, 77);
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  std::vector<float> x(count * dim);
  for (size_t t = 0; t < count; ++t) {
    std::vector<double> row(dim);
    for (size_t i = 0; i < dim; ++i) {
      const double z = 8 * std::exp2(-8 * double(i) / double(dim)) * normal(random);
      for (size_t c = 0; c < dim; ++c) row[c] += z * turn[i * dim + c];
    }
    for (size_t c = 0; c < dim; ++c)
      x[t * dim + c] = static_cast<float>(row[c] + (c == 5 ? 90 : std::cos(double(c))));
  }
  return x;
}

TEST(Eigen, VectorsAreOrthonormalAndTheirProductsTheMatrix) {
  for (size_t n : {1, 2, 3, 17, 63, 64}) {
    std::mt19937 random(static_cast<uint32_t>(n));
    std::normal_distribution<double> normal;
    std::vector<double> a(n * n);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j <= i; ++j) a[i * n + j] = a[j * n + i] = normal(random);
    const Eigen found = eigen_of(a, n);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < n; ++j) {
        double product = 0, length = 0;
        for (size_t k = 0; k < n; ++k) {
          product += found.values[k] * found.vectors[k * n + i] * found.vectors[k * n + j];
          length += found.vectors[i * n + k] * found.vectors[j * n + k];
        }
        ASSERT_NEAR(product, a[i * n + j], 1e-11 * double(n + 1)) << n;
        ASSERT_NEAR(length, i == j ? 1 : 0, 1e-11 * double(n + 1)) << n;
      }
    for (size_t i = 1; i < n; ++i) ASSERT_LE(found.values[i], found.values[i - 1]);
  }
}

TEST(Eigen, MatricesOfFewDirections) {
  for (const double d : {0.0, 3.0}) {
    std::vector<double> a(16);
    for (size_t i = 0; i < 4; ++i) a[5 * i] = d;
    EXPECT_EQ(eigen_of(a, 4).values, std::vector<double>(4, d));
  }
  // 1 everywhere: one direction of value n.
  const Eigen one = eigen_of(std::vector<double>(49, 1.0), 7);
  EXPECT_NEAR(one.values[0], 7, 1e-12);
  for (size_t i = 1; i < 7; ++i) EXPECT_NEAR(one.values[i], 0, 1e-12);
  for (size_t c = 0; c < 7; ++c) EXPECT_NEAR(std::fabs(one.vectors[c]), std::sqrt(1.0 / 7), 1e-12);
}

TEST(NormalLevels, AreThoseOfLloydAndMax) {
  // Max 1960, table I: 1 to 5 bits; levels of 2 and 3 bits.
  const double kErrors[] = {0.3634, 0.1175, 0.03454, 0.009497, 0.002499};
  for (size_t b = 0; b < 5; ++b)
    EXPECT_NEAR(normal_levels()[b].error(), kErrors[b], 5e-3 * kErrors[b]);
  // Many levels: pi sqrt(3) / 2 in 4^b, from below.
  for (size_t b = 5; b < 8; ++b) {
    const double many = 2.7207 / std::exp2(2.0 * double(b + 1));
    EXPECT_LT(normal_levels()[b].error(), 1.01 * many);
    EXPECT_GT(normal_levels()[b].error(), 0.93 * many);
  }
  const std::vector<float> kTwo{-1.510f, -0.4528f, 0.4528f, 1.510f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(normal_levels()[1].levels()[i], kTwo[i], 5e-4);
  const float kThree[] = {0.2451f, 0.7560f, 1.344f, 2.152f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(normal_levels()[2].levels()[4 + i], kThree[i], 1e-3);
}

TEST(NormalLevels, NearestIsNearest) {
  for (const NormalLevels& of : normal_levels())
    for (float x = -6; x < 6; x += 0.0173f)
      for (const float level : of.levels())
        ASSERT_LE(std::fabs(x - of.at_nearest(x)), std::fabs(x - level) + 1e-6f);
}

TEST(Kvtc, BitsGoWhereTheyTakeMostError) {
  const std::vector<double> variances{40, 9, 3, 0.2};
  const auto error = [&](const std::vector<int>& bits) {
    double sum = 0;
    for (size_t i = 0; i < 4; ++i)
      sum += variances[i] *
             (bits[i] == 0 ? 1 : normal_levels()[static_cast<size_t>(bits[i] - 1)].error());
    return sum;
  };
  for (int total : {0, 1, 5, 9, 14}) {
    double least = 1e9;
    for (int code = 0; code < 9 * 9 * 9 * 9; ++code) {
      const std::vector<int> bits{code % 9, code / 9 % 9, code / 81 % 9, code / 729};
      if (std::accumulate(bits.begin(), bits.end(), 0) == total)
        least = std::min(least, error(bits));
    }
    const auto found = bits_by_variance(variances, static_cast<size_t>(total));
    EXPECT_EQ(std::accumulate(found.begin(), found.end(), 0), total);
    EXPECT_DOUBLE_EQ(error({found.begin(), found.end()}), least) << total;
  }
  // No more than 8 each, however many there are.
  EXPECT_EQ(bits_by_variance({5, 1}, 100), (std::vector<uint8_t>{8, 8}));
}

TEST(Kvtc, ErrorIsThatOfNormalNumbersAtTheseBits) {
  for (size_t dim : {48, 64, 128})
    for (double bits : {1.25, 2.25, 4.25}) {
      const Machine machine;
      const TransformFormat format{bits, 512};
      const auto rows = make(machine, format, dim);
      const auto x = rows_of(1500, dim, 3);
      rows->append(x.data(), dim, 1500);
      const auto back = decoded(*rows);
      double error = 0, expected = 0;
      for (size_t i = 512 * dim; i < x.size(); ++i) error += std::pow(back[i] - x[i], 2);
      error /= 1500 - 512;
      std::vector<double> variances;
      for (size_t i = 0; i < dim; ++i)
        variances.push_back(64 * std::exp2(-16 * double(i) / double(dim)));
      const auto spread = bits_by_variance(variances, format.code_bits(dim));
      for (size_t i = 0; i < dim; ++i)
        expected += variances[i] * (spread[i] == 0 ? 1 : normal_levels()[spread[i] - 1u].error());
      // Directions found from 512 rows, scales of 8 bits: a tenth and more; but scales fit the row.
      EXPECT_GT(error, 0.8 * expected) << dim << " " << bits;
      EXPECT_LT(error, 1.3 * expected) << dim << " " << bits;
    }
}

/// Mean squares of rows [n, D] around `mean` along each of `vectors` [R, D].
std::vector<double> variances_along(const std::vector<float>& vectors, const std::vector<float>& x,
                                    const std::vector<float>& mean) {
  const size_t dim = mean.size(), n = x.size() / dim;
  std::vector<double> variances;
  for (size_t i = 0; i < vectors.size() / dim; ++i) {
    double square = 0;
    for (size_t t = 0; t < n; ++t) {
      double along = 0;
      for (size_t c = 0; c < dim; ++c) along += vectors[i * dim + c] * (x[t * dim + c] - mean[c]);
      square += along * along;
    }
    variances.push_back(square / double(n));
  }
  return variances;
}

// Those of the rows themselves are, along the last vectors, a thousandth of that, or nothing.
TEST(Kvtc, DeviationsAreThoseOfLaterRows) {
  ThreadPool pool(2);
  for (const size_t dim : {48, 64})
    for (const size_t rows : {dim / 2, dim, dim + dim / 4, 4 * dim}) {
      const auto all = rows_of(rows + 2000, dim, 3);
      const auto first = all.begin() + static_cast<ptrdiff_t>(rows * dim);
      std::vector<float> mean(dim);
      for (size_t i = 0; i < rows * dim; ++i) mean[i % dim] += all[i] / float(rows);
      const auto tables =
          find_transform({all.begin(), first}, mean, std::vector<float>(dim, 1.0f), 8 * dim, pool);
      ASSERT_EQ(tables.bits.size(), dim);
      const auto later = variances_along(tables.vectors, {first, all.end()}, mean);
      for (size_t i = 0; i < dim; i += dim / 8) {  // an eighth of them together
        double told = 0, found = 0;
        for (size_t j = i; j < i + dim / 8; ++j) {
          told += std::pow(tables.deviations[j], 2);
          found += later[j];
        }
        EXPECT_GT(told, 0.4 * found) << rows << " rows of " << dim << ", from " << i;
        EXPECT_LT(told, 5 * found) << rows << " rows of " << dim << ", from " << i;
      }
      for (size_t i = 1; i < dim; ++i) ASSERT_LE(tables.deviations[i], tables.deviations[i - 1]);
    }
}

TEST(Kvtc, TablesOfTwoRowsAndMoreThreadsThanParts) {
  ThreadPool one(1), many(7);
  for (const size_t rows : {2, 3, 5, 64}) {
    const auto x = rows_of(rows, 16, 4);
    const std::vector<float> mean(16, 1.5f), weights(16, 1.0f);
    const auto a = find_transform(x, mean, weights, 40, one);
    const auto b = find_transform(x, mean, weights, 40, many);
    EXPECT_EQ(a.bits, b.bits) << rows;
    EXPECT_EQ(a.deviations, b.deviations) << rows;
    EXPECT_EQ(a.vectors, b.vectors) << rows;
    for (const float d : a.deviations) EXPECT_TRUE(std::isfinite(d) && d > 0) << rows;
  }
}

// A scale that fits all coordinates alike would be a hundred times too large for the large ones.
TEST(Kvtc, SmallCoordinatesThatGrowDoNotBlurTheLargeOnes) {
  const Machine machine;
  const auto rows = make(machine, {4.25, 128}, 64);
  std::mt19937 random(21);
  std::normal_distribution<float> normal;
  const auto draw = [&](float small) {
    std::vector<float> row(64);
    for (size_t c = 0; c < 64; ++c) row[c] = (c < 8 ? 8 : small) * normal(random);
    return row;
  };
  for (int t = 0; t < 128; ++t) rows->append(draw(1e-3f).data(), 64, 1);
  for (int t = 0; t < 20; ++t) {
    const auto row = draw(1);
    rows->append(row.data(), 64, 1);
    std::vector<float> back(64);
    rows->decode(back.data(), rows->rows() - 1, 1);
    double error = 0, size = 0;
    for (size_t c = 0; c < 8; ++c) {
      error += std::pow(back[c] - row[c], 2);
      size += std::pow(row[c], 2);
    }
    EXPECT_LT(error, 0.05 * size);
  }
}

TEST(Kvtc, KeysComeBackThroughRope) {
  const Machine machine;
  const Rope rope(64, 10000);
  const TransformCodec keys({4.25, 64}, Side::kKeys);
  const DenseCodec values(DType::kF32);
  RowStore store(machine.context, {.keys = &keys, .values = &values, .rope = &rope, .dim = 64});
  auto k = rows_of(400, 64, 5);
  for (size_t t = 0; t < 400; ++t) rope.rotate(machine.context.kernels, k.data() + t * 64, 7 + t);
  store.append({.k = k.data(), .v = k.data(), .stride = 64, .count = 400, .first_position = 7});
  std::vector<float> back(k.size());
  store.decode_keys(back.data(), 0, 400);
  double error = 0, size = 0;
  for (size_t i = 0; i < k.size(); ++i) {
    error += std::pow(back[i] - k[i], 2);
    size += std::pow(k[i], 2);
  }
  EXPECT_LT(std::sqrt(error / size), 0.02);
  EXPECT_GT(store.keys().rows(), 0u);
}

/// Squared errors of pairs times the energy of queries in them, of rows from `first` on.
double weighed_error(const std::vector<float>& x, const std::vector<float>& back,
                     const std::vector<float>& energy, size_t first) {
  const size_t half = energy.size(), dim = 2 * half;
  double error = 0;
  for (size_t i = first * dim; i < x.size(); ++i)
    error += double{energy[i % half]} * std::pow(double{back[i]} - x[i], 2);
  return error;
}

TEST(Kvtc, BitsGoWhereQueriesSeeThem) {
  constexpr size_t kDim = 64, kRows = 1500, kFirst = 256;
  std::vector<float> energy;
  for (size_t i = 0; i < kDim / 2; ++i) energy.push_back(7 * std::exp2(-12.0f * float(i) / 32));
  const auto x = rows_of(kRows, kDim, 3);
  for (const double bits : {1.25, 2.25, 4.25}) {
    const Machine machine;
    const auto plain = make(machine, {bits, kFirst}, kDim);
    const auto even = make(machine, {bits, kFirst}, kDim);
    const auto weighed = make(machine, {bits, kFirst}, kDim);
    even->show_queries(std::vector<float>(kDim / 2, 0.3f));
    weighed->show_queries(energy);
    for (CodedRows* rows : {plain.get(), even.get(), weighed.get()})
      rows->append(x.data(), kDim, kRows);
    // Queries that see all channels alike change nothing.
    EXPECT_EQ(decoded(*even), decoded(*plain));
    const double before = weighed_error(x, decoded(*plain), energy, kFirst);
    const double after = weighed_error(x, decoded(*weighed), energy, kFirst);
    EXPECT_LT(after, 0.6 * before) << bits;
    // Once rows are coded, their tables stay.
    const auto coded = decoded(*weighed);
    weighed->show_queries(std::vector<float>(kDim / 2, 1.0f));
    EXPECT_EQ(decoded(*weighed), coded);
  }
}

TEST(Kvtc, PairsThatNoQueryLooksAtComeBack) {
  const Machine machine;
  const auto rows = make(machine, {4.25, 64}, 64);
  std::vector<float> energy(32, 1.0f);
  for (size_t i = 16; i < 32; ++i) energy[i] = 0;
  rows->show_queries(energy);
  const auto x = rows_of(200, 64, 17);
  rows->append(x.data(), 64, 200);
  const auto back = decoded(*rows);
  double seen = 0, other = 0;
  for (size_t i = size_t{64} * 64; i < x.size(); ++i)
    (i % 32 < 16 ? seen : other) += std::pow(double{back[i]} - x[i], 2);
  EXPECT_LT(seen, other);
  // No worse than the mean of rows of deviation 8 and less would be.
  EXPECT_LT(other / (136 * 32), 16);
  rows->show_queries(std::vector<float>(32, 0.0f));  // no number to divide by
}

TEST(Kvtc, RowsThatWaitAreF16) {
  const Machine machine;
  const auto rows = make(machine, {2.25, 64}, 64);
  const auto x = rows_of(63, 64, 6);
  rows->append(x.data(), 64, 63);
  const auto back = decoded(*rows);
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(back[i], f16_to_f32(f32_to_f16(x[i])));
  EXPECT_EQ(rows->payload_bytes() + rows->metadata_bytes(), 63u * 128);
  EXPECT_EQ(TransformCodec({2.25, 64}, Side::kKeys).most_bytes(63, 64, false), 63 * 128 + 32);
}

TEST(Kvtc, BytesAreWhatTheFormatSays) {
  for (size_t dim : {48, 64, 128, 256})
    for (double bits : {0.5, 1.0, 2.25, 8.0}) {
      const Machine machine;
      const TransformFormat format{bits, 32};
      const auto rows = make(machine, format, dim);
      const auto x = rows_of(100, dim, 9);
      rows->append(x.data(), dim, 100);
      EXPECT_EQ(format.row_bytes(dim), static_cast<size_t>(std::lround(double(dim) * bits / 8)));
      EXPECT_EQ(rows->payload_bytes(), 100 * format.row_bytes(dim));
      EXPECT_LE(rows->metadata_bytes(), format.table_bytes(dim, format.most_coordinates(dim)));
      EXPECT_GT(rows->metadata_bytes(), 2 * dim);
      EXPECT_EQ(rows->allocated_bytes(), machine.memory.bytes(MemoryKind::kPayload) +
                                             machine.memory.bytes(MemoryKind::kMetadata));
    }
}

TEST(Kvtc, MoreRowsNeverTakeLess) {
  const TransformCodec codec({2.25, 256}, Side::kKeys);
  for (bool evicted : {false, true})
    for (size_t rows = 1; rows < 3000; ++rows)
      ASSERT_GE(codec.most_bytes(rows, 64, evicted), codec.most_bytes(rows - 1, 64, evicted));
}

TEST(Kvtc, DoesNotDependOnHowRowsArriveAndAClonesWayIsItsOwn) {
  const Machine machine;
  const TransformFormat format{2.25, 48};
  const auto x = rows_of(150, 64, 10), other = rows_of(150, 64, 11);
  const auto whole = make(machine, format, 64), single = make(machine, format, 64);
  whole->append(x.data(), 64, 150);
  for (size_t t = 0; t < 150; ++t) {
    if (t == 20 || t == 100) single->clone()->append(other.data(), 64, 100);
    single->append(x.data() + t * 64, 64, 1);
  }
  EXPECT_EQ(decoded(*single), decoded(*whole));
}

TEST(Kvtc, RowsThatLeaveTakeNothingAlong) {
  const Machine machine;
  const auto rows = make(machine, {2.25, 32}, 64);
  const auto x = rows_of(200, 64, 12);
  rows->append(x.data(), 64, 20);
  rows->keep(std::vector<uint32_t>{1, 2, 19});
  rows->append(x.data() + 20 * 64, 64, 80);
  const auto before = decoded(*rows);
  std::vector<uint32_t> kept;
  for (uint32_t t = 0; t < rows->rows(); t += 3) kept.push_back(t);
  rows->keep(kept);
  const auto after = decoded(*rows);
  for (size_t i = 0; i < after.size(); ++i) ASSERT_EQ(after[i], before[kept[i / 64] * 64 + i % 64]);
  // An empty store keeps its tables.
  rows->keep({});
  rows->append(x.data() + 99 * 64, 64, 1);
  EXPECT_EQ(decoded(*rows), std::vector<float>(before.end() - 64, before.end()));
}

TEST(Kvtc, RowsThatAreAllAlikeAndThenNot) {
  const Machine machine;
  const auto rows = make(machine, {4.25, 32}, 64);
  std::vector<float> x(64, 2.5f);
  for (int t = 0; t < 32; ++t) rows->append(x.data(), 64, 1);
  EXPECT_EQ(decoded(*rows), std::vector<float>(size_t{32} * 64, 2.5f));
  const auto later = rows_of(1, 64, 13);
  rows->append(later.data(), 64, 1);
  const auto back = decoded(*rows);
  double error = 0, size = 0;
  for (size_t c = 0; c < 64; ++c) {
    error += std::pow(back[size_t{32} * 64 + c] - later[c], 2);
    size += std::pow(later[c], 2);
  }
  EXPECT_LT(error, 0.1 * size);
}

TEST(Kvtc, SavedRowsWithoutWeightsAreRefusedAsOlder) {
  for (const std::byte form : {std::byte{0}, std::byte{1}}) {
    const Machine machine;
    const auto rows = make(machine, {2.25, 32}, 64);
    const std::vector<std::byte> saved(4096, form);
    Archive a(saved, "a file");
    try {
      rows->archive(a);
      FAIL() << "read";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("older version"), std::string::npos) << e.what();
    }
  }
}

TEST(Kvtc, WhatCannotBeIsRefused) {
  const CodecRow row = kvtc_row();
  for (const char* bits : {"0.4", "8.1", "none"})
    EXPECT_THROW(row.read({"kvtc", {{"bits", bits}}}), Error) << bits;
  EXPECT_THROW(row.read({"kvtc", {{"calibrate", "1"}}}), Error);
  for (float bad : {NAN, INFINITY, 1e30f})
    for (size_t at : {5, 50}) {
      const Machine machine;
      const auto rows = make(machine, {2.25, 32}, 64);
      auto x = rows_of(64, 64, 14);
      x[at * 64 + 3] = bad;
      EXPECT_THROW(rows->append(x.data(), 64, 64), Error) << bad;
    }
}

}  // namespace
}  // namespace pith
