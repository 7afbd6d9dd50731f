// KVQuant: tables and codes against their definition written here (k-means by its fixed point, the
// nearest level by trying all), what a codebook is for, compaction bit for bit, bytes.

#include "methods/codecs/kvquant/kvquant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "core/dtype.h"
#include "machine.h"
#include "methods/codecs/kvquant/nonuniform_rows.h"
#include "methods/methods.h"
#include "pith/error.h"

namespace pith {
namespace {

using test::Machine;

/// Channels of different spread and mean, and a number that stands out now and then.
std::vector<float> rows_of(size_t count, size_t dim, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count * dim);
  for (size_t i = 0; i < x.size(); ++i) {
    const auto c = static_cast<float>(i % dim);
    x[i] = (0.2f + 0.05f * c) * normal(random) + 2 * std::sin(c);
    if (random() % 200 == 0) x[i] *= 12;
  }
  return x;
}

std::unique_ptr<CodedRows> make(const Machine& machine, const NonUniformFormat& format,
                                size_t dim) {
  RowsRequest request;
  request.side = format.side;
  request.dim = dim;
  return NonUniformCodec(format).make_rows(machine.context, request);
}

std::vector<float> decoded(const CodedRows& rows) {
  std::vector<float> x(rows.rows() * rows.dim());
  rows.decode(x.data(), 0, rows.rows());
  return x;
}

float as_f16(double x) { return f16_to_f32(f32_to_f16(static_cast<float>(x))); }

std::vector<NonUniformFormat> formats() {
  std::vector<NonUniformFormat> all;
  for (int bits : {2, 3, 4})
    for (size_t outliers : {0, 1, 3})
      for (Side side : {Side::kKeys, Side::kValues}) all.push_back({bits, outliers, 128, side});
  return all;
}

/// The range of a channel over the calibrating rows, or of a row without its farthest numbers.
std::pair<double, double> range_of(const NonUniformFormat& f, const std::vector<float>& x,
                                   size_t dim, size_t row, size_t channel) {
  std::vector<float> n;
  if (f.side == Side::kKeys) {
    for (size_t t = 0; t < f.calibrate; ++t)
      n.push_back(f16_to_f32(f32_to_f16(x[t * dim + channel])));
    std::sort(n.begin(), n.end());
    const double share = static_cast<double>(f.outliers) / static_cast<double>(dim);
    const auto cut = static_cast<size_t>(std::lround(share * static_cast<double>(n.size()) / 2));
    return {n[cut], n[n.size() - 1 - cut]};
  }
  double mean = 0;
  for (size_t c = 0; c < dim; ++c) n.push_back(x[row * dim + c]);
  if (row < f.calibrate)
    for (float& v : n) v = f16_to_f32(f32_to_f16(v));
  for (float v : n) mean += v / static_cast<double>(dim);
  std::sort(n.begin(), n.end(),
            [&](float a, float b) { return std::abs(a - mean) < std::abs(b - mean); });
  n.resize(dim - f.outliers);
  const auto [least, most] = std::minmax_element(n.begin(), n.end());
  return {*least, *most};
}

/// Lloyd's iteration by trying all levels for each number, in double.
std::vector<double> levels_of(const NonUniformFormat& f, const std::vector<float>& x,
                              const std::vector<std::pair<float, float>>& ranges, size_t dim) {
  std::vector<std::pair<double, double>> numbers;  // and their weights
  for (size_t i = 0; i < f.calibrate * dim; ++i) {
    const auto [low, scale] = ranges[i];
    const double u = (double{as_f16(x[i])} - low) / scale;
    // Numbers of values that are kept apart are not in the row's range.
    if (f.side == Side::kKeys || (u > -0.002 && u < 1.002))
      numbers.emplace_back(u, double{scale} * scale);
  }
  std::sort(numbers.begin(), numbers.end());
  const size_t size = size_t{1} << f.bits;
  std::vector<double> levels(size);
  for (size_t i = 0; i < size; ++i)
    levels[i] = numbers[(2 * i + 1) * numbers.size() / (2 * size)].first;
  for (int round = 0; round < 100; ++round) {
    std::vector<double> sum(size), weight(size);
    for (const auto& [u, w] : numbers) {
      size_t best = 0;
      for (size_t i = 1; i < size; ++i)
        if (std::abs(u - levels[i]) < std::abs(u - levels[best])) best = i;
      sum[best] += w * u;
      weight[best] += w;
    }
    bool moved = false;
    for (size_t i = 0; i < size; ++i) {
      if (weight[i] == 0) continue;
      moved |= std::abs(levels[i] - sum[i] / weight[i]) > 1e-7;
      levels[i] = sum[i] / weight[i];
    }
    if (!moved) break;
  }
  return levels;
}

TEST(KvQuant, NumbersAreTheNearestLevelOrKeptApart) {
  const size_t count = 200;
  for (size_t dim : {64, 80})
    for (const NonUniformFormat& f : formats()) {
      if (dim == 80 && f.outliers != 1) continue;
      const Machine machine;
      const auto rows = make(machine, f, dim);
      const auto x = rows_of(count, dim, 3);
      rows->append(x.data(), dim, count);
      const auto got = decoded(*rows);
      size_t apart = 0;
      std::vector<std::pair<float, float>> ranges(count * dim);  // low, scale as f16
      for (size_t i = 0; i < got.size(); ++i) {
        const auto [least, most] = range_of(f, x, dim, i / dim, i % dim);
        ranges[i] = {as_f16(least), as_f16(most - least)};
      }
      const auto levels = levels_of(f, x, ranges, dim);
      for (size_t t = 0; t < count; ++t) {
        size_t row_apart = 0;
        for (size_t c = 0; c < dim; ++c) {
          const size_t i = t * dim + c;
          const float exact = as_f16(x[i]);
          if (got[i] == exact) {
            ++row_apart;
            continue;
          }
          double best = INFINITY;
          for (double l : levels)
            best = std::min(best, std::abs(ranges[i].first + l * ranges[i].second - x[i]));
          ASSERT_LE(std::abs(got[i] - x[i]), best + 0.002 * ranges[i].second)
              << f.bits << " bits, row " << t << " channel " << c;
        }
        ASSERT_GE(row_apart, f.outliers);
        apart += row_apart;
      }
      EXPECT_LT(apart, count * (f.outliers + dim / 16 + 1)) << "codes, not copies";
    }
}

TEST(KvQuant, SumsOfValuesAreThoseOfTheDecodedRows) {
  for (const NonUniformFormat& f : formats())
    for (size_t dim : {64, 80, 96})
      for (std::string_view isa : available_isas()) {
        if (f.side == Side::kKeys) continue;
        const Machine machine{isa};
        const auto rows = make(machine, f, dim);
        const size_t count = 170, first = 3, n = count - first, queries = 5;
        const auto x = rows_of(count, dim, 13), p = test::normals(queries * n, 14);
        rows->append(x.data(), dim, count);
        const auto got = decoded(*rows);
        std::vector<float> sums(queries * dim), out(queries * dim, 1.0f);
        rows->accumulate(sums.data(), p.data(), n, queries, first, n);
        rows->finish(out.data(), sums.data(), queries);
        for (size_t i = 0; i < out.size(); ++i) {
          double sum = 1, size = 1;
          for (size_t t = 0; t < n; ++t) {
            const double term = double{p[i / dim * n + t]} * got[(first + t) * dim + i % dim];
            sum += term;
            size += std::abs(term);
          }
          ASSERT_NEAR(out[i], sum, 4e-6 * size) << isa << " d" << dim << " bits " << f.bits;
        }
      }
}

TEST(KvQuant, TheCodebookIsAFixedPointOfLloyd) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (int bits : {2, 3, 4})
    for (size_t n : {1, 3, 40, 5000}) {
      std::vector<WeightedNumber> numbers;
      for (size_t i = 0; i < n; ++i)
        numbers.push_back({0.5f + 0.2f * normal(random), 0.1f + static_cast<float>(i % 7)});
      const auto copy = numbers;
      const Codebook book(numbers, bits);
      ASSERT_EQ(book.size(), size_t{1} << bits);
      std::vector<double> sum(book.size()), weight(book.size());
      for (const WeightedNumber& x : copy) {
        size_t best = 0;
        for (size_t i = 1; i < book.size(); ++i)
          if (std::abs(x.x - book.levels()[i]) < std::abs(x.x - book.levels()[best])) best = i;
        ASSERT_NEAR(book.levels()[book.nearest(x.x)], book.levels()[best], 1e-3);
        sum[best] += double{x.weight} * x.x;
        weight[best] += x.weight;
      }
      for (size_t i = 0; i < book.size(); ++i) {
        if (weight[i] == 0) continue;
        EXPECT_NEAR(book.levels()[i], sum[i] / weight[i], 4e-3) << n;
      }
    }
}

TEST(KvQuant, FittedLevelsBeatUniformOnesOnNormalNumbers) {
  // Lloyd and Max: squared error 0.1175 of the variance at 2 bits, 0.03454 at 3, 0.009497 at 4.
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  const double best[] = {0.1175, 0.03454, 0.009497};
  for (int bits : {2, 3, 4}) {
    std::vector<WeightedNumber> numbers(20000);
    for (WeightedNumber& x : numbers) x = {normal(random), 1};
    const auto copy = numbers;
    const Codebook book(numbers, bits);
    double error = 0;
    for (const WeightedNumber& x : copy)
      error += std::pow(x.x - book.levels()[book.nearest(x.x)], 2.0) / 20000;
    EXPECT_GT(error, 0.93 * best[bits - 2]);
    EXPECT_LT(error, 1.07 * best[bits - 2]);
  }
}

TEST(KvQuant, CompactionMovesCodesAndChangesNone) {
  std::mt19937 random(12);
  for (const NonUniformFormat& f : formats()) {
    const Machine machine;
    const auto rows = make(machine, f, 64);
    for (uint32_t round = 0; round < 8; ++round) {
      const size_t count = 128 + random() % 70;  // no row waits after the first
      const auto x = rows_of(count, 64, 20 + round);
      rows->append(x.data(), 64, count);
      const auto before = decoded(*rows);
      std::vector<uint32_t> kept;
      for (uint32_t t = 0; t < rows->rows(); ++t)
        if (random() % 3 != 0 && round != 4) kept.push_back(t);
      const auto copy = rows->clone();
      rows->keep(kept);
      const auto after = decoded(*rows);
      for (size_t i = 0; i < kept.size() * 64; ++i)
        ASSERT_EQ(after[i], before[kept[i / 64] * 64 + i % 64]);
      ASSERT_EQ(decoded(*copy), before);
    }
  }
}

TEST(KvQuant, RowsOneByOneAreRowsAtOnceAndWaitAsTheyAre) {
  for (const NonUniformFormat& f : formats()) {
    const Machine machine;
    const auto one = make(machine, f, 64), all = make(machine, f, 64);
    const auto x = rows_of(150, 64, 8);
    all->append(x.data(), 64, 150);
    for (size_t t = 0; t < 150; ++t) {
      if (t == 127) {
        const auto waiting = decoded(*one);
        for (size_t i = 0; i < waiting.size(); ++i) ASSERT_EQ(waiting[i], as_f16(x[i]));
      }
      one->append(x.data() + t * 64, 64, 1);
    }
    EXPECT_EQ(decoded(*one), decoded(*all));
  }
}

TEST(KvQuant, BytesAreWhatTheFormatSays) {
  for (const NonUniformFormat& f : formats())
    for (size_t dim : {64, 128}) {
      const Machine machine;
      const auto rows = make(machine, f, dim);
      const auto x = rows_of(300, dim, 9);
      rows->append(x.data(), dim, 300);
      const size_t range = f.side == Side::kValues ? 4 : 0;
      const size_t table = (f.side == Side::kKeys ? 4 * dim : 0) + (size_t{2} << f.bits);
      const auto bits = static_cast<size_t>(f.bits);
      EXPECT_EQ(rows->payload_bytes(), 300 * (dim * bits / 8 + 2 * f.outliers));
      EXPECT_EQ(rows->metadata_bytes(), 300 * (range + f.outliers) + table);
      EXPECT_EQ(rows->allocated_bytes(), machine.memory.bytes(MemoryKind::kPayload) +
                                             machine.memory.bytes(MemoryKind::kMetadata));
      EXPECT_EQ(NonUniformCodec(f).bytes_per_row(dim),
                static_cast<double>(dim * bits / 8 + 3 * f.outliers + range));
    }
}

TEST(KvQuant, NumbersThatStandOutCostLessApart) {
  const auto x = rows_of(512, 64, 10);
  for (Side side : {Side::kKeys, Side::kValues}) {
    double errors[2] = {};
    for (size_t outliers : {0, 1}) {
      const Machine machine;
      const auto rows = make(machine, {2, outliers, 128, side}, 64);
      rows->append(x.data(), 64, 512);
      const auto got = decoded(*rows);
      for (size_t i = 0; i < x.size(); ++i) errors[outliers] += std::pow(got[i] - x[i], 2.0);
    }
    EXPECT_LT(errors[1], 0.5 * errors[0]);
  }
}

TEST(KvQuant, WhatCannotBeIsRefused) {
  const Machine machine;
  EXPECT_THROW(make(machine, {3, 64, 128, Side::kKeys}, 64), Error);
  EXPECT_THROW(make(machine, {3, 1, 128, Side::kKeys}, 512), Error);
  for (float bad : {NAN, INFINITY, 1e30f})
    for (size_t row : {5, 140}) {
      const auto rows = make(machine, {3, 1, 128, Side::kValues}, 64);
      auto x = rows_of(160, 64, 11);
      x[row * 64 + 3] = bad;
      EXPECT_THROW(rows->append(x.data(), 64, 160), Error) << bad;
    }
  const CodecRow row = kvquant_row();
  EXPECT_THROW(row.make(row.read({"kvquant", {{"bits", "5"}}}), Side::kKeys), Error);
}

}  // namespace
}  // namespace pith
