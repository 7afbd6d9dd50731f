// Blocks that encode_blocks makes, read back by the decoder, whose numbers are checked against the
// gguf package's elsewhere.

#include "tools/quantize/block_encode.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "kernels/block_products.h"
#include "pith/error.h"

namespace pith {
namespace {

std::vector<float> read_back(const std::vector<float>& x, WeightType type) {
  std::vector<std::byte> blocks(row_bytes(type, x.size()));
  encode_blocks(blocks.data(), x.data(), type, x.size());
  std::vector<float> out(x.size());
  block_kernels(kernels_for("scalar")).decode(out.data(), blocks.data(), type, x.size());
  return out;
}

/// The root of the mean square error, beside that of the numbers.
double relative_error(const std::vector<float>& x, WeightType type) {
  const std::vector<float> y = read_back(x, type);
  double off = 0, square = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    off += (double{x[i]} - y[i]) * (double{x[i]} - y[i]);
    square += double{x[i]} * x[i];
  }
  return std::sqrt(off / square);
}

std::vector<float> normals(size_t n, float mean = 0) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(mean, 1);
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// Two-sided: less would be too good to be true. A block of 32 normal numbers reaches 2.07 on
// average, so that steps of Q8_0 are 2.07 / 127 and the error is that over the root of 12: 0.0047.
TEST(BlockEncode, ErrorsOfNormalNumbers) {
  const std::vector<float> x = normals(1 << 16);
  const auto within = [&](WeightType type, double least, double most) {
    const double error = relative_error(x, type);
    EXPECT_GT(error, least) << to_string(type);
    EXPECT_LT(error, most) << to_string(type);
  };
  within(WeightType::kQ8Zero, 0.0045, 0.0056);
  within(WeightType::kQ5Zero, 0.030, 0.041);
  within(WeightType::kQ4Zero, 0.065, 0.085);
  within(WeightType::kQ4K, 0.055, 0.075);
}

TEST(BlockEncode, NoErrorIsBeyondAStep) {
  const std::vector<float> x = normals(1 << 14, 0.3f);
  const std::vector<float> y = read_back(x, WeightType::kQ8Zero);
  for (size_t b = 0; b < x.size(); b += 32) {
    float most = 0;
    for (size_t i = b; i < b + 32; ++i) most = std::max(most, std::abs(x[i]));
    for (size_t i = b; i < b + 32; ++i) EXPECT_LE(std::abs(x[i] - y[i]), 0.502f * most / 127);
  }
}

TEST(BlockEncode, WhatATypeHoldsComesBack) {
  // Codes times a scale that f16 holds: nothing is lost, whatever the tries.
  std::mt19937 random(5);
  const auto exact = [&](WeightType type, int least, int most, float offset) {
    std::vector<float> x(512);
    for (size_t i = 0; i < x.size(); ++i) {
      const int span = most - least + 1;
      int code = least + static_cast<int>(random() % static_cast<unsigned>(span));
      if (i % 32 == 0) code = least;
      if (i % 32 == 1) code = most;
      x[i] = 0.25f * static_cast<float>(code) - offset;
    }
    const std::vector<float> y = read_back(x, type);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(y[i], x[i], 1e-6) << to_string(type) << i;
  };
  exact(WeightType::kQ8Zero, -127, 127, 0);
  exact(WeightType::kQ4Zero, -8, 7, 0);
  exact(WeightType::kQ5Zero, -16, 15, 0);
}

TEST(BlockEncode, EdgesAreKept) {
  for (const WeightType type : encoded_types()) {
    const std::vector<float> zeros(512, 0.0f);
    EXPECT_EQ(read_back(zeros, type), zeros) << to_string(type);
    for (const float c : {1.0f, -1.0f, 0.03f, 1000.0f}) {
      for (const float y : read_back(std::vector<float>(512, c), type))
        EXPECT_NEAR(y, c, std::abs(c) * 0.02f) << to_string(type);
    }
    std::vector<float> one(512, 0.0f);
    one[300] = -7;
    EXPECT_NEAR(read_back(one, type)[300], -7, 0.05) << to_string(type);
    std::vector<float> huge(512, 1e9f);
    std::vector<std::byte> blocks(row_bytes(type, huge.size()));
    EXPECT_THROW(encode_blocks(blocks.data(), huge.data(), type, huge.size()), Error);
  }
  std::byte out[512];
  float x[256] = {};
  EXPECT_THROW(encode_blocks(out, x, WeightType::kQ6K, 256), Error);
}

}  // namespace
}  // namespace pith
