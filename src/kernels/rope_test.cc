#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "pith/error.h"

namespace pith {
namespace {

TEST(Rope, TurnsPairsByPositionTimesFrequency) {
  const size_t dim = 64;
  const Rope rope(dim, 10000.0);
  for (int64_t position : {0, 1, 77, 4095, 4096, 1000000}) {
    std::vector<float> x(dim), before(dim);
    for (size_t i = 0; i < dim; ++i) x[i] = before[i] = std::sin(static_cast<float>(3 * i + 1));
    rope.rotate(kernels_for(), x.data(), position);
    for (size_t i = 0; i < dim / 2; ++i) {
      const double a = double(position) * std::pow(10000.0, -2.0 * double(i) / double(dim));
      EXPECT_NEAR(x[i], before[i] * std::cos(a) - before[i + 32] * std::sin(a), 1e-6);
      EXPECT_NEAR(x[i + 32], before[i + 32] * std::cos(a) + before[i] * std::sin(a), 1e-6);
    }
    rope.rotate(kernels_for(), x.data(), -position);
    for (size_t i = 0; i < dim; ++i) EXPECT_NEAR(x[i], before[i], 1e-6);
  }
}

TEST(Rope, CursorAgreesWithAnglesForAnyOrder) {
  const Rope rope(80, 500000.0);
  RopeCursor cursor(rope);
  std::vector<float> c(40), s(40), c2(40), s2(40);
  for (int64_t p : {0, 1, 63, 64, 65, 4095, 4096, 4097, 70000, 3, 131071, 1000000, -5, 2}) {
    rope.angles(c.data(), s.data(), p);
    cursor.angles(c2.data(), s2.data(), p);
    for (size_t i = 0; i < 40; ++i) {
      ASSERT_NEAR(c[i], c2[i], 2e-7) << p;
      ASSERT_NEAR(s[i], s2[i], 2e-7) << p;
    }
  }
}

TEST(Rope, CursorTurnsRowsAsRopeDoesOnEveryInstructionSet) {
  for (size_t dim : {16, 64, 80, 128}) {
    const Rope rope(dim, 10000.0);
    const std::vector<uint32_t> positions = {0, 1, 64, 127, 4096, 5000, 3, 130000};
    std::vector<float> x(positions.size() * dim);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(3 * i + 1));
    for (std::string_view isa : available_isas()) {
      RopeCursor cursor(rope);
      auto named = x, counted = x;
      cursor.rotate_rows(kernels_for(isa), named.data(), positions.data(), 0, positions.size());
      cursor.rotate_rows(kernels_for(isa), counted.data(), nullptr, -2, positions.size());
      for (size_t t = 0; t < positions.size(); ++t) {
        auto expected = x;
        rope.rotate(kernels_for("scalar"), expected.data() + t * dim, positions[t]);
        for (size_t c = t * dim; c < (t + 1) * dim; ++c)
          ASSERT_NEAR(named[c], expected[c], 1e-6) << isa << " d" << dim << " row " << t;
        expected = x;
        rope.rotate(kernels_for("scalar"), expected.data() + t * dim, static_cast<int64_t>(t) - 2);
        for (size_t c = t * dim; c < (t + 1) * dim; ++c)
          ASSERT_NEAR(counted[c], expected[c], 1e-6) << isa << " d" << dim << " row " << t;
      }
    }
  }
}

TEST(Rope, ScalesLongWavelengthsAsLlama3) {
  const RopeScaling scaling{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_context = 8192};
  const Rope rope(128, 500000.0, scaling);
  std::vector<float> c(64), s(64);
  rope.angles(c.data(), s.data(), 1);
  for (size_t i = 0; i < 64; ++i) {
    const double w = std::pow(500000.0, -2.0 * double(i) / 128), length = 2 * M_PI / w;
    double wanted = w;
    if (length > 8192.0)
      wanted = w / 8;
    else if (length >= 2048.0) {
      const double smooth = (8192 / length - 1) / 3;
      wanted = (1 - smooth) * w / 8 + smooth * w;
    }
    EXPECT_NEAR(s[i], std::sin(wanted), 1e-7 + 1e-6 * std::sin(wanted)) << i;
  }
  Rope(64, 1e4, {.factor = 2, .linear = true}).angles(c.data(), s.data(), 2);
  EXPECT_NEAR(s[0], std::sin(1.0), 1e-7);
}

TEST(Rope, TurnsSomeOfTheChannelsAndDividesFrequencies) {
  const std::vector<double> divisors = {1, 2.5, 4, 64};
  const Rope rope(32, 10000.0, {.divisors = divisors, .rotated = 8});
  std::vector<float> c(16), s(16);
  rope.angles(c.data(), s.data(), 1000);
  for (size_t i = 0; i < 16; ++i) {
    const double w = i < 4 ? std::pow(10000.0, -2.0 * double(i) / 8) / divisors[i] : 0;
    EXPECT_NEAR(s[i], std::sin(1000 * w), 1e-6) << i;
  }
  std::vector<float> x(32, 0.1f), before = x;
  RopeCursor(rope).rotate_rows(kernels_for(), x.data(), nullptr, 70001, 1);
  for (size_t i = 4; i < 16; ++i) EXPECT_EQ(x[i], before[i]) << "channels that stand still";
  EXPECT_NE(x[0], before[0]);
}

TEST(Rope, LayersNameTheirs) {
  const Rope one(16, 10000.0), other(16, 1e6);
  EXPECT_EQ(LayerRopes().of(3), nullptr);
  EXPECT_EQ(LayerRopes(nullptr).of(0), nullptr);
  EXPECT_EQ(LayerRopes(&one).of(7), &one);
  const LayerRopes mixed(std::vector<const Rope*>{&other, &other, &one, &other});
  EXPECT_EQ(mixed.distinct(), (std::vector<const Rope*>{&other, &one}));
  EXPECT_EQ(mixed.of(2), &one);
  EXPECT_EQ(mixed.of(3), &other);
  EXPECT_EQ(mixed.index(2), 1u);
}

TEST(Rope, RefusesWhatCannotBeTurned) {
  EXPECT_THROW(Rope(8, 1e4, {.rotated = 10}), Error);
  EXPECT_THROW(Rope(8, 1e4, {.rotated = 3}), Error);
  EXPECT_THROW(Rope(8, 1e4, {.divisors = {1, 2}}), Error);
  EXPECT_THROW(Rope(8, 1e4, {.divisors = {1, 2, 0, 1}}), Error);
  EXPECT_THROW(Rope(7, 1e4), Error);
  EXPECT_THROW(Rope(8, 0), Error);
  EXPECT_THROW(Rope(8, 1e4, {.factor = 0}), Error);
}

}  // namespace
}  // namespace pith
