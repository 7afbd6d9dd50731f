// Weights in blocks: decoding against numbers of the reference package, products against sums in
// double over decoded weights.

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>
#include <random>

#include "core/dtype.h"
#include "core/safetensors.h"
#include "kernels/block_products.h"
#include "paths.h"

namespace pith {
namespace {

const BlockKernels& scalar() { return block_kernels(kernels_for("scalar")); }

std::vector<WeightType> block_types() {
  std::vector<WeightType> types;
  for (WeightType type : weight_types()) {
    if (!dense_type(type)) types.push_back(type);
  }
  return types;
}

class BlocksTest : public testing::TestWithParam<std::tuple<std::string_view, WeightType>> {
 protected:
  const BlockKernels& kernels() const {
    return block_kernels(kernels_for(std::get<0>(GetParam())));
  }
  WeightType type() const { return std::get<1>(GetParam()); }
};

std::string test_name(const testing::TestParamInfo<std::tuple<std::string_view, WeightType>>& p) {
  return std::string(std::get<0>(p.param)) + "_" + to_string(std::get<1>(p.param));
}

INSTANTIATE_TEST_SUITE_P(Blocks, BlocksTest,
                         testing::Combine(testing::ValuesIn(available_isas().begin(),
                                                            available_isas().end()),
                                          testing::ValuesIn(block_types())),
                         test_name);

TEST_P(BlocksTest, DecodesWhatTheReferenceDecodes) {
  const SafeTensors file = SafeTensors::open(repo_dir() / "tests/data/blocks.safetensors");
  const std::string name = to_string(type());
  const Tensor &blocks = file.at(name + ".blocks"), &values = file.at(name + ".values");
  ASSERT_EQ(values.count() / block_elements(type()), blocks.bytes / block_bytes(type()));
  // Whole, and each block alone: rows end anywhere.
  std::vector<float> out(values.count());
  kernels().decode(out.data(), blocks.data, type(), out.size());
  EXPECT_EQ(std::memcmp(out.data(), values.data, values.bytes), 0);
  std::fill(out.begin(), out.end(), 0.0f);
  const size_t n = block_elements(type());
  for (size_t i = 0; i < out.size() / n; ++i) {
    kernels().decode(out.data() + i * n, blocks.data + i * block_bytes(type()), type(), n);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    float wanted;
    std::memcpy(&wanted, values.data + 4 * i, 4);
    ASSERT_EQ(std::bit_cast<uint32_t>(out[i]), std::bit_cast<uint32_t>(wanted)) << i;
  }
}

/// Bytes that end where a page begins that nobody may read.
class GuardedBytes {
 public:
  explicit GuardedBytes(size_t size) : size_(size) {
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    whole_ = (size + page - 1) / page * page + page;
    void* p = ::mmap(nullptr, whole_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    map_ = static_cast<std::byte*>(p);
    ::mprotect(map_ + whole_ - page, page, PROT_NONE);
    first_ = map_ + whole_ - page - size;
  }
  ~GuardedBytes() { ::munmap(map_, whole_); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;
  std::byte* data() const { return first_; }
  std::byte* begin() const { return first_; }
  std::byte* end() const { return first_ + size_; }
  size_t size() const { return size_; }

 private:
  size_t size_, whole_ = 0;
  std::byte *map_ = nullptr, *first_ = nullptr;
};

/// A matrix of random blocks that ends where its memory does, with its numbers.
struct Matrix {
  Matrix(WeightType t, size_t rows_, size_t in_, uint32_t seed)
      : type(t), rows(rows_), in(in_), bytes(rows * row_bytes(type, in)), values(rows * in) {
    std::mt19937 random(seed);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random());
    for (size_t at = 0; at < bytes.size(); at += block_bytes(type)) {
      for (const uint8_t offset : scale_offsets(type)) {
        const float scale = (static_cast<float>(random() % 2001) - 1000) * 1e-5f;
        const uint16_t half = f32_to_f16(scale);
        std::memcpy(bytes.data() + at + offset, &half, 2);
      }
    }
    scalar().decode(values.data(), bytes.data(), type, values.size());
  }
  WeightType type;
  size_t rows, in;
  GuardedBytes bytes;
  std::vector<float> values;
};

/// Squares of errors beside squares of a sum's terms, which do not cancel as sums may.
struct Errors {
  double difference = 0, square = 0;
  double nmse() const { return difference / square; }
};

std::vector<float> multiply(const BlockKernels& kernels, const Matrix& m,
                            const std::vector<float>& x, size_t tokens, bool wide) {
  // Aligned as the struct asks; filled with ones, so that what is not written shows.
  const size_t bytes = rounded_bytes(m.in, wide);
  std::vector<RoundedInputs> room(tokens * bytes / sizeof(RoundedInputs) + 1);
  std::memset(static_cast<void*>(room.data()), 0xFF, room.size() * sizeof(RoundedInputs));
  auto* rounded = reinterpret_cast<std::byte*>(room.data());
  for (size_t t = 0; t < tokens; ++t)
    kernels.round_inputs(rounded + t * bytes, x.data() + t * m.in, m.in, wide);
  std::vector<float> out(tokens * m.rows, NAN);
  const BlockProduct product{.out = out.data(),
                             .ld = m.rows,
                             .x = rounded,
                             .wide = wide,
                             .tokens = tokens,
                             .w = m.bytes.data(),
                             .type = m.type,
                             .rows = m.rows,
                             .in = m.in};
  const size_t half = m.rows / 2;
  kernels.multiply(product, 0, half);
  kernels.multiply(product, half, m.rows);
  return out;
}

Errors errors_of(const BlockKernels& kernels, const Matrix& m, const std::vector<float>& x,
                 size_t tokens, bool wide) {
  const std::vector<float> out = multiply(kernels, m, x, tokens, wide);
  Errors errors;
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t o = 0; o < m.rows; ++o) {
      double sum = 0;
      for (size_t i = 0; i < m.in; ++i) {
        const double term = double{m.values[o * m.in + i]} * x[t * m.in + i];
        sum += term;
        errors.square += term * term;
      }
      errors.difference += (out[t * m.rows + o] - sum) * (out[t * m.rows + o] - sum);
    }
  }
  return errors;
}

// Whole numbers whose largest of each 32 is what inputs are rounded to lose nothing, so that every
// wrong scale or index shows.
TEST_P(BlocksTest, WholeNumbersAreMultipliedExactly) {
  std::mt19937 random(3);
  for (const bool wide : {false, true}) {
    const int most = wide ? 32639 : 127;
    for (const size_t in : {32, 64, 96, 256, 512, 576, 640, 896, 1312}) {
      if (in % block_elements(type()) != 0) continue;
      for (const size_t rows : {1, 3, 8, 63}) {
        const Matrix m(type(), rows, in, static_cast<uint32_t>(in + rows));
        for (const size_t tokens : {1, 2, 3, 7}) {
          std::vector<float> x(tokens * in);
          for (size_t i = 0; i < x.size(); ++i) {
            const int n = static_cast<int>(random() % (2 * most + 1)) - most;
            x[i] = static_cast<float>(i % 32 == 5 ? (n < 0 ? -most : most) : n);
          }
          const Errors errors = errors_of(kernels(), m, x, tokens, wide);
          EXPECT_LE(errors.nmse(), 1e-12)
              << in << " inputs, " << rows << " rows, " << tokens << " tokens, wide " << wide;
        }
      }
    }
  }
}

TEST_P(BlocksTest, EveryPlaceCountsAlone) {
  const size_t in = block_elements(type()) + 256;
  const Matrix m(type(), 2, in, 9);
  for (const bool wide : {false, true}) {
    for (size_t i = 0; i < in; ++i) {
      std::vector<float> x(in);
      x[i] = -2;
      const auto out = multiply(kernels(), m, x, 1, wide);
      for (size_t o = 0; o < 2; ++o) {
        const float wanted = -2 * m.values[o * in + i];
        ASSERT_NEAR(out[o], wanted, 1e-4 * std::abs(wanted) + 1e-4) << i;
      }
    }
  }
}

// Two-sided: less would mean that inputs are not rounded as documented.
TEST_P(BlocksTest, RoundingCostsWhatItShould) {
  const size_t in = 1024, rows = 64, tokens = 24;
  const Matrix m(type(), rows, in, 11);
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> x(tokens * in);
  for (float& v : x) v = normal(random);
  const double narrow = errors_of(kernels(), m, x, tokens, false).nmse();
  EXPECT_GT(narrow, 2.3e-5);
  EXPECT_LT(narrow, 3.6e-5);
  const double wide = errors_of(kernels(), m, x, tokens, true).nmse();
  EXPECT_GT(wide, 2e-10);
  EXPECT_LT(wide, 1e-9);
}

TEST_P(BlocksTest, ExtremeCodesDoNotSaturate) {
  const size_t in = 512;
  for (const int fill : {0x00, 0xFF, 0x80, 0x7F}) {
    Matrix m(type(), 3, in, 1);
    for (std::byte& b : m.bytes) b = static_cast<std::byte>(fill);
    const uint16_t half = f32_to_f16(0.01f);
    for (size_t at = 0; at < m.bytes.size(); at += block_bytes(type())) {
      for (const uint8_t offset : scale_offsets(type()))
        std::memcpy(m.bytes.data() + at + offset, &half, 2);
    }
    scalar().decode(m.values.data(), m.bytes.data(), type(), m.values.size());
    for (const bool wide : {false, true}) {
      for (const float most : {127.0f, -127.0f, 32639.0f, -32639.0f, -32512.0f}) {
        std::vector<float> x(in, most);
        const auto out = multiply(kernels(), m, x, 1, wide);
        double sum = 0, size = 0;
        for (size_t i = 0; i < in; ++i) {
          sum += double{m.values[i]} * most;
          size += std::abs(double{m.values[i]} * most);
        }
        EXPECT_NEAR(out[0], sum, 2e-5 * size + 1e-3) << fill << " " << most << " wide " << wide;
      }
    }
  }
}

TEST_P(BlocksTest, RoundedInputsAreTheScalarOnes) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (const bool wide : {false, true}) {
    for (const size_t n : {32, 33, 255, 256, 576}) {
      std::vector<float> x(n);
      for (float& v : x) v = normal(random);
      x[n / 2] = 0;
      const size_t bytes = rounded_bytes(n, wide);
      std::vector<RoundedInputs> a(bytes / sizeof(RoundedInputs) + 1), b = a;
      kernels().round_inputs(reinterpret_cast<std::byte*>(a.data()), x.data(), n, wide);
      scalar().round_inputs(reinterpret_cast<std::byte*>(b.data()), x.data(), n, wide);
      EXPECT_EQ(std::memcmp(a.data(), b.data(), bytes), 0) << n << " wide " << wide;
    }
  }
}

TEST_P(BlocksTest, WhatIsNotFiniteStaysSo) {
  const Matrix m(type(), 2, 512, 2);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> x(512, 1.0f);
    x[300] = bad;
    for (const bool wide : {false, true}) {
      for (const float y : multiply(kernels(), m, x, 1, wide)) EXPECT_FALSE(std::isfinite(y));
    }
  }
  const std::vector<float> tiny(512, 1e-38f);
  for (const float y : multiply(kernels(), m, tiny, 1, false)) EXPECT_EQ(y, 0);
}

}  // namespace
}  // namespace pith
