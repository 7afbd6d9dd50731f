// Centring around any codec: exact where the codec is, the score's shift, what it is for, and that
// the centres follow from the rows alone.

#include "rows/cpu/centred_rows.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "core/dtype.h"
#include "machine.h"
#include "rows/cpu/dense.h"
#include "rows/cpu/test_coded_rows.h"
#include "rows/cpu/token_rows.h"

namespace pith {
namespace {

using test::decoded;
using test::Machine;

constexpr size_t kDim = 48;

/// Keys with a mean far larger than their spread.
std::vector<float> keys_of(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count * kDim);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = 0.3f * normal(random) + 5 * std::cos(static_cast<float>(i % kDim));
  return x;
}

std::unique_ptr<Codec> inner(bool dense) {
  if (dense) return std::make_unique<DenseCodec>(DType::kF32);
  return std::make_unique<TokenCodec>(TokenFormat{4, false});
}

std::unique_ptr<CodedRows> make(const Machine& machine, const Codec& codec) {
  return test::rows_of(machine, codec, kDim);
}

TEST(CentredRows, ScoresAndRowsAreTheKeys) {
  const CentredCodec codec(inner(true), 64);
  for (size_t count : {1, 63, 64, 65, 300}) {
    const Machine machine;
    const auto rows = make(machine, codec);
    const auto k = keys_of(count, 1), q = keys_of(3, 2);
    rows->append(k.data(), kDim, count);
    ASSERT_EQ(rows->rows(), count);
    const auto back = decoded(*rows);
    // Rows waited in f16; their numbers are below 8.
    for (size_t i = 0; i < k.size(); ++i) ASSERT_NEAR(back[i], k[i], 4e-3);
    std::vector<float> prepared(rows->prepared_size(3), NAN), out(3 * count, NAN);
    rows->prepare(prepared.data(), q.data(), 3);
    const size_t first = count / 3, n = count - first;
    rows->scores(out.data(), count, q.data(), prepared.data(), 3, first, n, 0.25f);
    for (size_t m = 0; m < 3; ++m)
      for (size_t t = 0; t < n; ++t) {
        double score = 0;
        for (size_t c = 0; c < kDim; ++c)
          score += double{q[m * kDim + c]} * back[(first + t) * kDim + c];
        ASSERT_NEAR(out[m * count + t], score / 4, 1e-3);
      }
  }
}

TEST(CentredRows, CodesKeysAroundTheMeanOfTheirGroup) {
  // The definition: rows as f16 holds them, minus their group's mean, to the inner codec.
  const Machine machine;
  const CentredCodec codec(inner(false), 64);
  const auto rows = make(machine, codec);
  const auto plain_codec = inner(false);
  const auto plain = make(machine, *plain_codec);
  auto k = keys_of(192, 3);
  rows->append(k.data(), kDim, 192);
  for (float& x : k) x = f16_to_f32(f32_to_f16(x));
  std::vector<float> mu(3 * kDim);
  for (size_t i = 0; i < mu.size(); ++i) {
    double sum = 0;
    for (size_t t = 0; t < 64; ++t) sum += k[(i / kDim * 64 + t) * kDim + i % kDim];
    mu[i] = f16_to_f32(f32_to_f16(static_cast<float>(sum / 64)));
  }
  const auto mean = [&](size_t i) { return mu[i / kDim / 64 * kDim + i % kDim]; };
  for (size_t i = 0; i < k.size(); ++i) k[i] -= mean(i);
  plain->append(k.data(), kDim, 192);
  auto expected = decoded(*plain);
  for (size_t i = 0; i < k.size(); ++i) expected[i] += mean(i);
  EXPECT_EQ(decoded(*rows), expected);
}

TEST(CentredRows, ErrorFollowsTheSpreadAndNotTheMean) {
  double errors[2] = {};
  const auto k = keys_of(512, 4);
  for (int centre = 0; centre < 2; ++centre) {
    const Machine machine;
    std::unique_ptr<Codec> codec = inner(false);
    if (centre) codec = std::make_unique<CentredCodec>(std::move(codec), 64);
    const auto rows = make(machine, *codec);
    rows->append(k.data(), kDim, 512);
    const auto back = decoded(*rows);
    for (size_t i = 0; i < k.size(); ++i) errors[centre] += std::pow(back[i] - k[i], 2.0);
  }
  EXPECT_LT(std::sqrt(errors[1]), 0.3 * std::sqrt(errors[0]));
}

TEST(CentredRows, DoNotDependOnHowRowsArriveAndAClonesWayIsItsOwn) {
  const CentredCodec codec(inner(false), 64);
  const Machine machine;
  const auto k = keys_of(260, 5), other = keys_of(260, 6);
  const auto whole = make(machine, codec), single = make(machine, codec);
  whole->append(k.data(), kDim, 260);
  for (size_t t = 0; t < 260; ++t) {
    if (t == 100) single->clone()->append(other.data(), kDim, 200);
    single->append(k.data() + t * kDim, kDim, 1);
  }
  EXPECT_EQ(decoded(*single), decoded(*whole));
  const auto copy = whole->clone();
  const auto before = decoded(*whole);
  copy->keep(std::vector<uint32_t>{});
  EXPECT_EQ(copy->rows(), 0u);
  copy->append(k.data(), kDim, 7);
  EXPECT_EQ(decoded(*copy).size(), 7 * kDim);
  EXPECT_EQ(decoded(*whole), before);
}

TEST(CentredRows, CompactionMovesCodesAndChangesNone) {
  std::mt19937 random(8);
  const CentredCodec codec(inner(false), 32);
  const Machine machine;
  const auto rows = make(machine, codec);
  for (uint32_t round = 0; round < 12; ++round) {
    // Rows that wait are f16 until their group is full: fill groups before comparing.
    const size_t coded = rows->rows();
    const auto k = keys_of(64 + random() % 64, 20 + round);
    rows->append(k.data(), kDim, k.size() / kDim);
    const auto before = decoded(*rows);
    std::vector<uint32_t> kept;
    for (uint32_t t = 0; t < rows->rows(); ++t)
      if (random() % 4 != 0 && (round != 5 || t > coded)) kept.push_back(t);
    rows->keep(kept);
    const auto after = decoded(*rows);
    ASSERT_EQ(after.size(), kept.size() * kDim);
    for (size_t i = 0; i < after.size(); ++i)
      ASSERT_EQ(after[i], before[kept[i / kDim] * kDim + i % kDim]) << "round " << round;
    for (size_t t = 0; t < kept.size(); t += 5) {
      std::vector<float> one(kDim);
      rows->decode(one.data(), t, 1);
      for (size_t c = 0; c < kDim; ++c) ASSERT_EQ(one[c], after[t * kDim + c]);
    }
  }
}

TEST(CentredRows, BytesAreTheCodesAndTheCentre) {
  const CentredCodec codec(inner(false), 64);
  const Machine machine;
  const auto rows = make(machine, codec);
  const auto k = keys_of(200, 7);
  rows->append(k.data(), kDim, 63);
  EXPECT_EQ(rows->payload_bytes() + rows->metadata_bytes(), 63 * kDim * 2);
  rows->append(k.data(), kDim, 129);
  const size_t total = 192 * (kDim / 2 + 4) + 3 * (2 * kDim + 4);
  EXPECT_EQ(rows->payload_bytes() + rows->metadata_bytes(), total);
  EXPECT_DOUBLE_EQ(192 * codec.bytes_per_row(kDim), static_cast<double>(total));
  EXPECT_EQ(rows->allocated_bytes(), machine.memory.bytes(MemoryKind::kPayload) +
                                         machine.memory.bytes(MemoryKind::kMetadata));
  EXPECT_LE(static_cast<double>(total), codec.most_bytes(192, kDim, false));
}

}  // namespace
}  // namespace pith
