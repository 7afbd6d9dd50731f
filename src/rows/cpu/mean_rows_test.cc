// One mean before RoPE around any codec: rows against the definition, keys after RoPE against a
// reference in double under RoPE of some channels, what it is for, and that the mean follows from
// the first rows alone.

#include "rows/cpu/mean_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "core/dtype.h"
#include "machine.h"
#include "rows/cpu/dense.h"
#include "rows/cpu/rotated_rows.h"
#include "rows/cpu/row_store.h"
#include "rows/cpu/test_coded_rows.h"
#include "rows/cpu/token_rows.h"

namespace pith {
namespace {

using test::decoded;
using test::Machine;

constexpr size_t kDim = 64, kTurning = 48, kFirst = 32;
constexpr double kTheta = 10000;

/// Keys before RoPE: normal numbers around a constant of which two channels are most.
std::vector<float> keys_of(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count * kDim);
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t c = i % kDim;
    x[i] = normal(random) + (c == 3 ? 90.0f : c == 40 ? -60.0f : std::sin(static_cast<float>(c)));
  }
  return x;
}

std::unique_ptr<Codec> int4() { return std::make_unique<TokenCodec>(TokenFormat{4, false}); }

std::unique_ptr<CodedRows> make(const Machine& machine, const Codec& codec) {
  return test::rows_of(machine, codec, kDim);
}

float as_f16(double x) { return f16_to_f32(f32_to_f16(static_cast<float>(x))); }

/// x [D] turned to `position`, from the definition: pairs of the first kTurning channels.
std::vector<double> turned(const float* x, int64_t position) {
  std::vector<double> out(x, x + kDim);
  for (size_t i = 0; i < kTurning / 2; ++i) {
    const double angle = double(position) * std::pow(kTheta, -2.0 * double(i) / double(kTurning));
    const double a = x[i], b = x[i + kDim / 2];
    out[i] = a * std::cos(angle) - b * std::sin(angle);
    out[i + kDim / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
  return out;
}

TEST(MeanRows, CodesWhatRowsHaveBesideTheMeanOfTheFirst) {
  // The definition: rows, the first of them as f16 holds them, minus the mean to the inner codec.
  const Machine machine;
  const MeanCodec codec(int4(), kFirst);
  const auto rows = make(machine, codec), plain = make(machine, *int4());
  auto k = keys_of(100, 3);
  rows->append(k.data(), kDim, 100);
  for (size_t i = 0; i < kFirst * kDim; ++i) k[i] = as_f16(k[i]);
  std::vector<float> mean(kDim);
  for (size_t c = 0; c < kDim; ++c) {
    double sum = 0;
    for (size_t t = 0; t < kFirst; ++t) sum += k[t * kDim + c];
    mean[c] = as_f16(sum / kFirst);
  }
  for (size_t i = 0; i < k.size(); ++i) k[i] -= mean[i % kDim];
  plain->append(k.data(), kDim, 100);
  auto expected = decoded(*plain);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += mean[i % kDim];
  EXPECT_EQ(decoded(*rows), expected);
}

TEST(MeanRows, RowsBeforeTheMeanAreF16) {
  for (size_t count : {size_t{1}, kFirst - 1}) {
    const Machine machine;
    const MeanCodec codec(int4(), kFirst);
    const auto rows = make(machine, codec);
    const auto k = keys_of(count, 4);
    rows->append(k.data(), kDim, count);
    const auto back = decoded(*rows);
    ASSERT_EQ(back.size(), k.size());
    for (size_t i = 0; i < k.size(); ++i) ASSERT_EQ(back[i], as_f16(k[i]));
    EXPECT_EQ(rows->payload_bytes() + rows->metadata_bytes(), count * kDim * 2);
    EXPECT_EQ(codec.most_bytes(count, kDim, false), static_cast<double>(count * kDim * 2));
  }
}

/// Root of the mean squared error of keys after RoPE as a store gives them back.
double error_after_rope(std::unique_ptr<Codec> codec, size_t count) {
  const Machine machine;
  RopeScaling scaling;
  scaling.rotated = kTurning;
  const Rope rope(kDim, kTheta, scaling);
  const DenseCodec values(DType::kF32);
  RowStore store(machine.context,
                 {.keys = codec.get(), .values = &values, .rope = &rope, .dim = kDim});
  const auto k = keys_of(count, 5);
  std::vector<double> exact;
  std::vector<float> at;
  for (size_t t = 0; t < count; ++t)
    for (double x : turned(k.data() + t * kDim, 1000 + static_cast<int64_t>(t))) {
      exact.push_back(x);
      at.push_back(static_cast<float>(x));
    }
  store.append(
      {.k = at.data(), .v = k.data(), .stride = kDim, .count = count, .first_position = 1000});
  std::vector<float> back(count * kDim);
  store.decode_keys(back.data(), 0, count);
  double sum = 0;
  for (size_t i = 0; i < back.size(); ++i) sum += std::pow(back[i] - exact[i], 2);
  return std::sqrt(sum / static_cast<double>(back.size()));
}

TEST(MeanRows, KeysAfterRopeAreThoseThatCame) {
  // Rows that waited are f16, of numbers below 128: 2^-5 at most. The others are f32.
  EXPECT_LT(
      error_after_rope(
          std::make_unique<MeanCodec>(std::make_unique<DenseCodec>(DType::kF32), kFirst), 400),
      0.01);
}

TEST(MeanRows, ErrorFollowsTheSpreadAndNotTheConstantPart) {
  // 4 bits around zero: a step is at most 1/7 of the largest number of 32, here some 3 of normal
  // ones, and the error uniform in it: 3 / 7 / sqrt(12) = 0.12.
  const double coded = error_after_rope(
      std::make_unique<MeanCodec>(std::make_unique<RotatedCodec>(int4(), Side::kKeys), kFirst),
      400);
  EXPECT_LT(coded, 0.15);
  EXPECT_GT(coded, 0.05);
  // Without, the transform spreads |k| = 110 over all channels.
  EXPECT_GT(error_after_rope(std::make_unique<RotatedCodec>(int4(), Side::kKeys), 400), 5 * coded);
}

TEST(MeanRows, DoNotDependOnHowRowsArriveAndAClonesWayIsItsOwn) {
  const MeanCodec codec(int4(), kFirst);
  const Machine machine;
  const auto k = keys_of(150, 6), other = keys_of(150, 7);
  const auto whole = make(machine, codec), single = make(machine, codec);
  whole->append(k.data(), kDim, 150);
  for (size_t t = 0; t < 150; ++t) {
    if (t == 20 || t == 100) single->clone()->append(other.data(), kDim, 100);
    single->append(k.data() + t * kDim, kDim, 1);
  }
  EXPECT_EQ(decoded(*single), decoded(*whole));
}

TEST(MeanRows, RowsThatLeaveTakeNothingAlong) {
  const MeanCodec codec(int4(), kFirst);
  const Machine machine;
  const auto rows = make(machine, codec);
  const auto k = keys_of(200, 8);
  rows->append(k.data(), kDim, 20);
  rows->keep(std::vector<uint32_t>{1, 2, 19});
  EXPECT_EQ(rows->rows(), 3u);
  rows->append(k.data() + 20 * kDim, kDim, 80);  // the mean is of rows 1, 2, 19 and 29 of these
  const auto before = decoded(*rows);
  std::vector<uint32_t> kept;
  for (uint32_t t = 0; t < rows->rows(); t += 3) kept.push_back(t);
  rows->keep(kept);
  const auto after = decoded(*rows);
  ASSERT_EQ(after.size(), kept.size() * kDim);
  for (size_t i = 0; i < after.size(); ++i)
    ASSERT_EQ(after[i], before[kept[i / kDim] * kDim + i % kDim]);
  // An empty store still codes around that mean.
  rows->keep({});
  rows->append(k.data() + 99 * kDim, kDim, 1);
  const auto last = decoded(*rows);
  EXPECT_EQ(last, std::vector<float>(before.end() - kDim, before.end()));
}

TEST(MeanRows, BytesAreTheCodesAndOneMean) {
  const MeanCodec codec(int4(), kFirst);
  const Machine machine;
  const auto rows = make(machine, codec);
  const auto k = keys_of(200, 9);
  rows->append(k.data(), kDim, 200);
  const size_t total = 200 * (kDim / 2 + 2 * kDim / 32) + 2 * kDim;
  EXPECT_EQ(rows->payload_bytes() + rows->metadata_bytes(), total);
  EXPECT_EQ(codec.most_bytes(200, kDim, false), static_cast<double>(total));
  EXPECT_EQ(rows->allocated_bytes(), machine.memory.bytes(MemoryKind::kPayload) +
                                         machine.memory.bytes(MemoryKind::kMetadata));
}

}  // namespace
}  // namespace pith
