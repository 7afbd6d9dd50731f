// Weights in tiles on the GPU against their blocks: numbers out of tiles beside the CPU's, products
// of few and of many tokens beside sums in double precision.

#include <cmath>

#include "harness.h"
#include "kernels/block_products.h"
#include "kernels/block_tiles.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/tile_rows.h"
#include "kernels/test_block_types.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// A matrix of random blocks, its numbers as the CPU decodes them, and its tiles.
struct Tiles {
  Tiles(MemoryCounter& counter, WeightType type_, size_t out_, size_t in_, uint32_t seed = 1)
      : type(type_), out(out_), in(in_) {
    std::mt19937 random(seed + static_cast<uint32_t>(out + 31 * in));
    std::vector<std::byte> blocks(out * row_bytes(type, in));
    for (std::byte& b : blocks) b = static_cast<std::byte>(random());
    for (size_t at = 0; at < blocks.size(); at += block_bytes(type)) {
      for (const uint8_t offset : scale_offsets(type)) {
        const uint16_t half = float_to_f16((static_cast<float>(random() % 2001) - 1000) * 1e-5f);
        std::memcpy(blocks.data() + at + offset, &half, 2);
      }
    }
    numbers.resize(out * in);
    block_kernels(kernels_for("scalar")).decode(numbers.data(), blocks.data(), type, out * in);
    const auto rows = to_device(counter, blocks);
    data = to_device(counter, std::vector<std::byte>(tile_counts(type, out, in).bytes()));
    // In two goes, as matrices come that are larger than what they pass through.
    const size_t half = out / 2 / kTileRows * kTileRows;
    if (half > 0) pack_tiles({data.data(), type, in, 0, half, rows.data()}, nullptr);
    const size_t bytes = half * row_bytes(type, in);
    pack_tiles({data.data(), type, in, half, out - half, rows.data() + bytes}, nullptr);
    check(cudaStreamSynchronize(nullptr), "tiles");
  }
  TiledMatrix matrix() const { return {data.data(), type, out, in}; }
  double product(size_t o, const float* x) const {
    double sum = 0;
    for (size_t i = 0; i < in; ++i) sum += double{numbers[o * in + i]} * x[i];
    return sum;
  }
  /// Sum of the squares of a product's terms, which do not cancel as they may.
  double squares(size_t o, const float* x) const {
    double sum = 0;
    for (size_t i = 0; i < in; ++i) sum += std::pow(double{numbers[o * in + i]} * x[i], 2);
    return sum;
  }

  WeightType type;
  size_t out, in;
  std::vector<float> numbers;
  DeviceArray<std::byte> data;
};

std::vector<float> multiply(MemoryCounter& counter, const Tiles& w, const std::vector<float>& x) {
  const size_t tokens = x.size() / w.in;
  const auto y = to_device(counter, std::vector<float>(tokens * w.out, NAN));
  const auto x_device = to_device(counter, x);
  tile_matvec({.y = y.data(), .ld = w.out, .w = w.matrix(), .x = x_device.data(), .tokens = tokens},
              nullptr);
  return to_host(y);
}

/// Squares of errors beside squares of terms.
struct Errors {
  void add(const Tiles& w, const std::vector<float>& x, const std::vector<float>& y) {
    for (size_t t = 0; t < x.size() / w.in; ++t) {
      for (size_t o = 0; o < w.out; ++o) {
        const float* row = x.data() + t * w.in;
        const double error = y[t * w.out + o] - w.product(o, row);
        difference += std::isfinite(error) ? error * error : INFINITY;
        square += w.squares(o, row);
        ++count;
      }
    }
  }
  double nmse() const { return difference / square; }
  double difference = 0, square = 0;
  size_t count = 0;
};

std::vector<float> normal_inputs(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}
/// Whole numbers whose largest in each 32 is what 16 bits hold: rounding changes none.
std::vector<float> whole_inputs(size_t n, uint32_t seed, bool largest) {
  std::mt19937 random(seed);
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) {
    const bool most = largest || i % 32 == 7;
    const auto whole = static_cast<float>(most ? 32639 : random() % 32640);
    x[i] = random() % 2 == 0 ? whole : -whole;
  }
  return x;
}

class CudaTiles : public testing::TestWithParam<WeightType> {
 protected:
  /// Those of the widths that are whole blocks.
  std::vector<size_t> widths() const {
    const size_t block = block_elements(GetParam());
    std::vector<size_t> widths;
    for (const size_t in :
         {block, 2 * block, size_t{576}, size_t{640}, size_t{896}, size_t{4096}}) {
      if (in % block == 0) widths.push_back(in);
    }
    return widths;
  }
  MemoryCounter counter_;
};

INSTANTIATE_TEST_SUITE_P(Types, CudaTiles, testing::ValuesIn(block_types()),
                         [](const auto& p) { return std::string(to_string(p.param)); });

TEST_P(CudaTiles, NumbersEqualTheCpus) {
  PITH_NEEDS_GPU();
  for (const size_t in : widths()) {
    const Tiles w(counter_, GetParam(), 83, in);
    for (const size_t first : {0, 32}) {
      const size_t count = w.out - first;
      const auto out = to_device(counter_, std::vector<float>(count * in, NAN));
      unpack_tiles({out.data(), DType::kF32, w.matrix(), first, count}, nullptr);
      const auto got = to_host(out);
      for (size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], w.numbers[first * in + i]) << i;
      const auto narrow = to_device(counter_, std::vector<uint16_t>(count * in, 0x7FFF));
      unpack_tiles({narrow.data(), DType::kBF16, w.matrix(), first, count}, nullptr);
      const auto bits = to_host(narrow);
      for (size_t i = 0; i < bits.size(); ++i)
        ASSERT_EQ(bf16_to_float(bits[i]), bf16_to_float(float_to_bf16(got[i]))) << i;
    }
    const std::vector<int32_t> ids = {82, 0, 17, 17};
    const auto picked = to_device(counter_, std::vector<float>(ids.size() * in, NAN));
    const auto ids_device = to_device(counter_, ids);
    pick_rows({picked.data(), w.matrix(), ids_device.data(), ids.size(), 0.5f}, nullptr);
    const auto rows = to_host(picked);
    for (size_t i = 0; i < rows.size(); ++i) {
      const float wanted = w.numbers[static_cast<size_t>(ids[i / in]) * in + i % in];
      ASSERT_EQ(rows[i], 0.5f * wanted) << i;
    }
  }
}

// Finds every scale and every index that is wrong: nothing is rounded but sums.
TEST_P(CudaTiles, ProductsOfWholeNumbersAreExact) {
  PITH_NEEDS_GPU();
  for (const size_t in : widths()) {
    for (const size_t out : {1, 3, 8, 63, 64, 1000}) {
      if (out == 1000 && in == 4096 && GetParam() != WeightType::kQ4K) continue;  // host's time
      const Tiles w(counter_, GetParam(), out, in);
      for (const size_t tokens : {1, 2, 3, 8, 9}) {
        for (const bool largest : {false, true}) {
          const auto x = whole_inputs(tokens * in, 5, largest);
          Errors errors;
          errors.add(w, x, multiply(counter_, w, x));
          EXPECT_LT(errors.nmse(), 1e-12) << out << " x " << in << ", " << tokens << " tokens";
        }
      }
    }
  }
}

TEST_P(CudaTiles, EachInputHasItsColumn) {
  PITH_NEEDS_GPU();
  const size_t in = 512, out = 40;
  const Tiles w(counter_, GetParam(), out, in);
  std::vector<float> x(in * in);
  for (size_t t = 0; t < in; ++t) x[t * in + t] = t % 2 == 0 ? 3 : -5;
  const auto y = multiply(counter_, w, x);
  for (size_t t = 0; t < in; ++t) {
    for (size_t o = 0; o < out; ++o) {
      const float wanted = x[t * in + t] * w.numbers[o * in + t];
      // Codes and minima are summed apart.
      ASSERT_NEAR(y[t * out + o], wanted, 2e-6 * (std::abs(wanted) + 1)) << t << ", " << o;
    }
  }
}

TEST_P(CudaTiles, RoundingIsOfSixteenBits) {
  PITH_NEEDS_GPU();
  Errors errors;
  for (const uint32_t seed : {1, 2, 3}) {
    const Tiles w(counter_, GetParam(), 2000, 512, seed);
    const auto x = normal_inputs(20 * w.in, seed);
    errors.add(w, x, multiply(counter_, w, x));
  }
  EXPECT_GT(errors.count, 100000u);
  EXPECT_GT(errors.nmse(), 2e-10);
  EXPECT_LT(errors.nmse(), 1e-9);
}

TEST_P(CudaTiles, WhatIsNotFiniteStaysSo) {
  PITH_NEEDS_GPU();
  const Tiles w(counter_, GetParam(), 20, 512);
  auto x = normal_inputs(3 * w.in, 3);
  x[300] = NAN;
  x[2 * w.in + 5] = -INFINITY;
  const auto y = multiply(counter_, w, x);
  for (size_t o = 0; o < w.out; ++o) {
    EXPECT_TRUE(std::isnan(y[o]));
    EXPECT_TRUE(std::isfinite(y[w.out + o]));
    EXPECT_TRUE(std::isnan(y[2 * w.out + o]));
  }
}

TEST_P(CudaTiles, EveryWayInAndOut) {
  PITH_NEEDS_GPU();
  const size_t in = 768, out = 608;
  const Tiles w(counter_, GetParam(), out, in);
  for (const MatvecEnd end :
       {MatvecEnd::kStore, MatvecEnd::kAdd, MatvecEnd::kGate, MatvecEnd::kGelu}) {
    for (const size_t tokens : {1, 2, 5}) {
      const bool with = tokens != 2;  // a norm and a bias
      const auto x = normal_inputs(tokens * in, 6), norm = normal_inputs(in, 7);
      const auto bias = normal_inputs(out, 8);
      const size_t results = out / static_cast<size_t>(parts_of(end));
      const float before = end == MatvecEnd::kAdd ? 1.5f : NAN;
      const auto y = to_device(counter_, std::vector<float>(tokens * results, before));
      const auto x_device = to_device(counter_, x), norm_device = to_device(counter_, norm);
      const auto bias_device = to_device(counter_, bias);
      tile_matvec(
          {y.data(), results, w.matrix(), x_device.data(), with ? norm_device.data() : nullptr,
           0.5f, with ? bias_device.data() : nullptr, end, tokens},
          nullptr);
      std::vector<double> wanted;
      for (size_t t = 0; t < tokens; ++t) {
        double squares = 0;
        for (size_t i = 0; i < in; ++i) squares += std::pow(double{x[t * in + i]}, 2);
        const double factor = with ? 1 / std::sqrt(squares / static_cast<double>(in) + 0.5) : 1;
        std::vector<float> row(in);
        for (size_t i = 0; i < in; ++i)
          row[i] = static_cast<float>(factor * x[t * in + i] * (with ? norm[i] : 1));
        const auto sum = [&](size_t o) { return w.product(o, row.data()) + (with ? bias[o] : 0); };
        for (size_t o = 0; o < results; ++o) {
          const double s = sum(o);
          const double gelu = s / (1 + std::exp(-1.5957691216 * s * (1 + 0.044715 * s * s)));
          switch (end) {
            case MatvecEnd::kStore: wanted.push_back(s); break;
            case MatvecEnd::kAdd: wanted.push_back(s + 1.5); break;
            case MatvecEnd::kGate:
              wanted.push_back(s / (1 + std::exp(-s)) * sum(o + results));
              break;
            case MatvecEnd::kGelu: wanted.push_back(gelu * sum(o + results)); break;
          }
        }
      }
      EXPECT_LT(relative_error(to_host(y), wanted), 2e-4) << static_cast<int>(end) << " " << tokens;
    }
  }
}

TEST_P(CudaTiles, SameInputsSameBits) {
  PITH_NEEDS_GPU();
  const Tiles w(counter_, GetParam(), 3000, 2048);
  const auto x = normal_inputs(4 * w.in, 9);
  const auto once = multiply(counter_, w, x);
  for (int again = 0; again < 5; ++again) EXPECT_EQ(once, multiply(counter_, w, x));
  // Nor does a token see the others; but sums are cut otherwise.
  const auto alone = multiply(counter_, w, {x.begin(), x.begin() + static_cast<ptrdiff_t>(w.in)});
  for (size_t o = 0; o < w.out; ++o)
    EXPECT_NEAR(once[o], alone[o], 3e-6 * std::sqrt(w.squares(o, x.data()))) << o;
}

// Tokens that are coded first share a launch: one, two or four groups of four a block.
TEST_P(CudaTiles, CodedTokensGetTheBitsOfFour) {
  PITH_NEEDS_GPU();
  for (const size_t in : {512, 14336}) {
    const size_t out = 96, most = 70;
    const Tiles w(counter_, GetParam(), out, in);
    const auto x = to_device(counter_, normal_inputs(most * in, 11));
    const auto norm = to_device(counter_, normal_inputs(in, 12));
    const auto bias = to_device(counter_, normal_inputs(out, 13));
    for (const MatvecEnd end : {MatvecEnd::kStore, MatvecEnd::kAdd, MatvecEnd::kGate}) {
      const size_t results = out / static_cast<size_t>(parts_of(end));
      for (const size_t tokens : {4, 5, 8, 9, 16, 17, 70}) {
        const bool with = tokens % 2 == 1;
        const auto multiplied = [&](std::byte* coded) {
          const auto y = to_device(counter_, std::vector<float>(tokens * results, 1.5f));
          tile_matvec({y.data(),
                       results,
                       w.matrix(),
                       x.data(),
                       with ? norm.data() : nullptr,
                       0.5f,
                       with ? bias.data() : nullptr,
                       end,
                       tokens,
                       true,
                       {},
                       coded},
                      nullptr);
          return to_host(y);
        };
        const size_t bytes = coded_inputs_bytes(w.matrix(), tokens);
        const auto room = to_device(counter_, std::vector<std::byte>(bytes + 64, std::byte{0x5A}));
        EXPECT_EQ(multiplied(room.data()), multiplied(nullptr)) << in << ", " << tokens;
        const auto behind = to_host(room);
        EXPECT_TRUE(std::all_of(behind.end() - 64, behind.end(),
                                [](std::byte b) { return b == std::byte{0x5A}; }));
      }
    }
  }
}

// Rows of several types in one matrix, as files of mixed types have them.
TEST(CudaMixedMatrix, MultipliesFewAndMany) {
  PITH_NEEDS_GPU();
  MemoryCounter counter;
  const size_t in = 512;
  const Tiles q(counter, WeightType::kQ4K, 128, in), v(counter, WeightType::kQ6K, 64, in);
  const auto dense = normals(64 * in, DType::kF16, 4);
  const auto dense_device = to_device(counter, dense);
  const auto* dense_data = reinterpret_cast<const std::byte*>(dense_device.data());
  const MixedMatrix w{{{q.data.data(), q.type, q.out},
                       {dense_data, WeightType::kF16, 64},
                       {v.data.data(), v.type, v.out}},
                      256,
                      in};
  EXPECT_FALSE(w.tiled());
  EXPECT_FALSE(w.gate_fuses());
  std::vector<float> numbers = q.numbers;
  const auto wide = widen(dense, DType::kF16);
  numbers.insert(numbers.end(), wide.begin(), wide.end());
  numbers.insert(numbers.end(), v.numbers.begin(), v.numbers.end());
  DeviceMatmul matmul(counter, nullptr);
  for (const size_t tokens : {1, 3, 70}) {
    const auto drawn = normals(tokens * in, DType::kBF16, 5);
    const auto x = widen(drawn, DType::kBF16);
    const auto x_wide = to_device(counter, x);
    const auto x_narrow = to_device(counter, drawn);
    std::vector<double> wanted;
    for (size_t t = 0; t < tokens; ++t) {
      for (size_t o = 0; o < w.out; ++o) {
        double sum = 1;
        for (size_t i = 0; i < in; ++i) sum += double{numbers[o * in + i]} * x[t * in + i];
        wanted.push_back(sum);
      }
    }
    const std::vector<float> ones(tokens * w.out, 1.0f);
    const auto few = to_device(counter, ones), many = to_device(counter, ones);
    const auto exact = to_device(counter, ones);
    few_tokens(
        {.y = few.data(), .w = &w, .x = x_wide.data(), .end = MatvecEnd::kAdd, .tokens = tokens},
        nullptr);
    matmul.run(many.data(), x_narrow.data(), DType::kBF16, w, tokens, true);
    matmul.run(exact.data(), x_wide.data(), DType::kF32, w, tokens, true);
    EXPECT_LT(relative_error(to_host(few), wanted), 1e-4) << tokens;
    EXPECT_LT(relative_error(to_host(many), wanted), 4e-3) << tokens;
    EXPECT_LT(relative_error(to_host(exact), wanted), 1e-5) << tokens;
  }
  FewTokensCall gated{.w = &w, .end = MatvecEnd::kGate};
  EXPECT_THROW(few_tokens(gated, nullptr), Error);
}

}  // namespace
}  // namespace pith::cuda
