// Products of up to 64 tokens by Hopper's tensor cores against double precision on the CPU, and
// that a token's bits are its own.

#include <cmath>

#include "kernels/cuda/skinny_product.h"

#include <fmt/format.h>

#include "harness.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

struct Case {
  size_t out, in, tokens;
  MatvecEnd end;
  DType dtype;
  SkinnyForm form;
};

/// A product's arguments, drawn.
class Skinny {
 public:
  explicit Skinny(const Case& of)
      : c(of),
        results(c.out / static_cast<size_t>(parts_of(c.end))),
        w_(normals(c.out * c.in, c.dtype, 21)),
        x_(normals(c.tokens * c.in, c.dtype, 22)),
        wide_w_(widen(w_, c.dtype)),
        wide_x_(widen(x_, c.dtype)),
        bias_(widen(normals(c.out, DType::kBF16, 23), DType::kBF16)),
        w_device_(to_device(counter_, w_)),
        x_device_(to_device(counter_, x_)),
        bias_device_(to_device(counter_, bias_)) {}

  bool gated() const { return parts_of(c.end) == 2; }

  /// [count, results] of tokens first, first + 1, ...; sums of parts are added up in order.
  std::vector<float> run(size_t first, size_t count) const {
    const auto parts = static_cast<size_t>(c.form.parts);
    const auto y = to_device(counter_, std::vector<float>(parts * count * results, NAN));
    skinny_product({y.data(),
                    {w_device_.data(), c.dtype, c.out, c.in},
                    x_device_.data() + first * c.in,
                    gated() ? bias_device_.data() : nullptr,
                    c.end,
                    count,
                    c.form},
                   nullptr);
    const std::vector<float> got = to_host(y);
    if (gated()) {
      std::vector<uint16_t> narrow(count * results);
      std::memcpy(narrow.data(), got.data(), 2 * narrow.size());
      return widen(narrow, c.dtype);
    }
    std::vector<float> sums(count * results);
    for (size_t part = 0; part < parts; ++part) {
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += got[part * sums.size() + i];
    }
    return sums;
  }
  double want(size_t token, size_t i) const {
    const auto sum = [&](size_t row) {
      double s = gated() ? bias_[row] : 0;
      for (size_t k = 0; k < c.in; ++k)
        s += double{wide_w_[row * c.in + k]} * wide_x_[token * c.in + k];
      return s;
    };
    const double g = sum(i);
    if (c.end == MatvecEnd::kStore) return g;
    const double by = sum(i + results);
    if (c.end == MatvecEnd::kGate) return g / (1 + std::exp(-g)) * by;
    return 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) * by;
  }

  const Case c;
  const size_t results;

 private:
  mutable MemoryCounter counter_;
  std::vector<uint16_t> w_, x_;
  std::vector<float> wide_w_, wide_x_, bias_;
  DeviceArray<uint16_t> w_device_, x_device_;
  DeviceArray<float> bias_device_;
};

std::vector<Case> cases() {
  using enum MatvecEnd;
  std::vector<Case> all;
  size_t tokens = 7;
  for (const auto& [out, in] : {std::pair<size_t, size_t>{192, 320}, {1040, 1024}, {64, 64}}) {
    for (const MatvecEnd end : {kStore, kGate, kGelu}) {
      for (const int rows : {32, 64, 128}) {
        for (const int parts : {1, 2, 4}) {
          if (parts > 1 && end != kStore) continue;
          for (const DType dtype : {DType::kBF16, DType::kF16}) {
            tokens = tokens * 5 % 67;  // of 1 to 64, most numbers
            all.push_back({out, in, std::min(tokens, kMostSkinny), end, dtype, {rows, parts}});
          }
        }
      }
    }
  }
  return all;
}
std::string to_string(const Case& c) {
  return fmt::format("{} x {} {}, {} tokens, end {}, {} rows, {} parts", c.out, c.in,
                     to_string(c.dtype), c.tokens, static_cast<int>(c.end), c.form.rows,
                     c.form.parts);
}

TEST(CudaSkinny, IsTheProduct) {
  if (!has_wgmma()) GTEST_SKIP() << "needs a card of compute capability 9.0";
  for (const Case& c : cases()) {
    if (left_out()) continue;
    SCOPED_TRACE(to_string(c));
    const Skinny skinny(c);
    const auto got = skinny.run(0, c.tokens);
    const double sigma = std::sqrt(static_cast<double>(c.in));  // of a sum
    const size_t token_step = c.tokens > 8 ? 13 : 1, step = skinny.results > 300 ? 37 : 1;
    for (size_t t = 0; t < c.tokens; t += token_step) {
      for (size_t i = 0; i < skinny.results; i += step) {
        const double want = skinny.want(t, i);
        const double bound = sigma * 1e-4 + (skinny.gated() ? std::abs(want) / 200 : 0);
        ASSERT_NEAR(got[t * skinny.results + i], want, bound) << "token " << t << ", number " << i;
      }
    }
  }
}

TEST(CudaSkinny, BitsOfATokenAreItsOwn) {
  if (!has_wgmma()) GTEST_SKIP() << "needs a card of compute capability 9.0";
  for (const Case& c : cases()) {
    if (left_out()) continue;
    SCOPED_TRACE(to_string(c));
    const Skinny skinny(c);
    const auto all = skinny.run(0, c.tokens);
    for (const size_t count : {1, 3, 9, 17, 33}) {
      if (count > c.tokens) continue;
      const size_t first = c.tokens - count;
      const auto some = skinny.run(first, count);
      ASSERT_TRUE(std::equal(some.begin(), some.end(),
                             all.begin() + static_cast<ptrdiff_t>(first * skinny.results)))
          << count << " tokens";
    }
  }
}

TEST(CudaSkinny, RefusesWhatItDoesNotTake) {
  const DeviceMatrix narrow{nullptr, DType::kBF16, 64, 72}, fine{nullptr, DType::kBF16, 64, 64};
  EXPECT_FALSE(skinny_takes(narrow));
  EXPECT_THROW(skinny_product({.w = narrow}, nullptr), Error);
  EXPECT_THROW(skinny_product({.w = fine, .tokens = 65}, nullptr), Error);
  EXPECT_THROW(skinny_product({.w = fine, .end = MatvecEnd::kAdd}, nullptr), Error);
  EXPECT_THROW(skinny_product({.w = fine, .end = MatvecEnd::kGate, .form = {64, 2}}, nullptr),
               Error);
}

}  // namespace
}  // namespace pith::cuda
