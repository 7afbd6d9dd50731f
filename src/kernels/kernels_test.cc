// Every primitive, every instruction set that the CPU has, against sums in double written here.
// Operands end at the end of poisoned memory, so that a read or write past them shows as NaN.

#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/philox.h"

namespace pith {
namespace {

constexpr size_t kSizes[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 200, 513};
constexpr size_t kDims[] = {16, 48, 64, 80, 96, 128, 256, 512};
constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr float kInf = std::numeric_limits<float>::infinity();

/// n floats between two runs of NaN, which check() finds unchanged.
class Guarded {
 public:
  explicit Guarded(size_t n) : n_(n), all_(n + 2 * kGuard, std::nanf("")) {}
  Guarded(size_t n, uint32_t seed, float lo = -1, float hi = 1) : Guarded(n) {
    const Philox random(seed, 0, 0);
    for (size_t i = 0; i < n; ++i) (*this)[i] = lo + (hi - lo) * random.uniform(i);
  }
  float* data() { return all_.data() + kGuard; }
  float& operator[](size_t i) { return data()[i]; }
  size_t size() const { return n_; }
  void check() {
    for (size_t i = 0; i < kGuard; ++i) {
      ASSERT_TRUE(std::isnan(all_[i])) << "written before the start";
      ASSERT_TRUE(std::isnan(all_[kGuard + n_ + i])) << "written past the end";
    }
  }

 private:
  static constexpr size_t kGuard = 64;
  size_t n_;
  std::vector<float> all_;
};

/// Numbers of one storage type, NaN around them, and their values.
struct Stored {
  Stored(size_t n, DType type, uint32_t seed) : bytes((n + 128) * 4, 0xFF), values(n) {
    const Philox random(seed, 1, 0);
    for (size_t i = 0; i < n; ++i) {
      const float x = 2 * random.uniform(i) - 1;
      uint8_t* at = bytes.data() + 256 + i * size_of(type);
      if (type == DType::kF32) {
        std::memcpy(at, &x, 4);
        values[i] = x;
      } else {
        const uint16_t h = type == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
        std::memcpy(at, &h, 2);
        values[i] = type == DType::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
      }
    }
  }
  const void* data() const { return bytes.data() + 256; }
  std::vector<uint8_t> bytes;
  std::vector<float> values;
};

class EachIsa : public testing::TestWithParam<std::string_view> {
 protected:
  const Kernels& k = kernels_for(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Kernels, EachIsa,
                         testing::ValuesIn(available_isas().begin(), available_isas().end()),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(EachIsa, IsTheOneThatWasAskedFor) {
  EXPECT_EQ(k.isa, GetParam());
  const std::string ran = k.ran();
  const std::map<std::string, std::string> targets = {
      {"avx512_vnni", "AVX3_DL"}, {"avx512", "AVX3"}, {"avx2", "AVX2"}, {"scalar", "scalar"}};
  EXPECT_EQ(ran, targets.at(std::string(GetParam())));
}

TEST_P(EachIsa, WidensExactlyAndRoundsToNearestEven) {
  for (DType type : kTypes) {
    for (size_t n : kSizes) {
      Stored in(n, type, 1);
      Guarded out(n);
      k.to_f32(out.data(), in.data(), type, n);
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(out[i], in.values[i]) << to_string(type) << n;
      out.check();
      if (type == DType::kF32) continue;
      Guarded x(n, 2, -3, 3);
      std::vector<uint16_t> half(n + 32, 0xABCD);
      k.from_f32(half.data(), x.data(), type, n);
      for (size_t i = 0; i < n; ++i)
        ASSERT_EQ(half[i], type == DType::kF16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]));
      for (size_t i = n; i < half.size(); ++i) ASSERT_EQ(half[i], 0xABCD);
    }
  }
}

TEST_P(EachIsa, ConvertsTheCornersOfTheHalfTypes) {
  const std::vector<float> x = {0.0f,     -0.0f,      1.0f,   1.00390625f,  1.01171875f, 65504,
                                65519.9f, 65520,      1e30f,  -kInf,        kInf,        0x1p-24f,
                                0x1p-25f, 0x1.8p-25f, 3e-39f, std::nanf("")};
  for (DType type : {DType::kF16, DType::kBF16}) {
    std::vector<uint16_t> half(x.size());
    k.from_f32(half.data(), x.data(), type, x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const uint16_t wanted = type == DType::kF16 ? f32_to_f16(x[i]) : f32_to_bf16(x[i]);
      if (std::isnan(x[i])) {
        EXPECT_TRUE(std::isnan(type == DType::kF16 ? f16_to_f32(half[i]) : bf16_to_f32(half[i])));
      } else {
        EXPECT_EQ(half[i], wanted) << to_string(type) << " " << x[i];
      }
    }
  }
  std::vector<uint16_t> every(65536);
  for (size_t i = 0; i < every.size(); ++i) every[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(every.size());
  k.to_f32(wide.data(), every.data(), DType::kF16, every.size());
  for (size_t i = 0; i < every.size(); ++i) {
    const float wanted = f16_to_f32(every[i]);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(wide[i]));
    } else {
      ASSERT_EQ(wide[i], wanted) << i;
    }
  }
}

TEST_P(EachIsa, DotsRowsWithQueries) {
  for (DType type : kTypes) {
    for (size_t dim : kDims) {
      for (size_t queries : {1, 2, 3, 4, 5, 7, 8, 16, 17}) {
        for (size_t count : {0, 1, 2, 3, 4, 5, 17}) {
          Stored rows(count * dim, type, 3);
          Guarded q(queries * dim, 4);
          const size_t ld = count + 3;
          Guarded out(queries * ld);
          k.dot_rows(out.data(), ld, q.data(), queries, {rows.data(), type, dim}, count, 0.5f);
          for (size_t m = 0; m < queries; ++m) {
            for (size_t t = 0; t < ld; ++t) {
              if (t >= count) {
                ASSERT_TRUE(std::isnan(out[m * ld + t]));
                continue;
              }
              double sum = 0;
              for (size_t c = 0; c < dim; ++c)
                sum += double{q[m * dim + c]} * rows.values[t * dim + c];
              ASSERT_NEAR(out[m * ld + t], 0.5 * sum, 2e-5) << dim << " " << queries;
            }
          }
        }
      }
    }
  }
}

TEST_P(EachIsa, AddsWeightedRows) {
  for (DType type : kTypes) {
    for (size_t dim : kDims) {
      for (size_t queries : {1, 2, 3, 4, 6, 8, 16, 17}) {
        for (size_t count : {0, 1, 3, 70}) {
          Stored rows(count * dim, type, 5);
          const size_t ld = count + 1;
          Guarded p(queries * ld, 6);
          Guarded acc(queries * dim, 7);
          std::vector<double> wanted(acc.data(), acc.data() + acc.size());
          for (size_t m = 0; m < queries; ++m)
            for (size_t t = 0; t < count; ++t)
              for (size_t c = 0; c < dim; ++c)
                wanted[m * dim + c] += double{p[m * ld + t]} * rows.values[t * dim + c];
          k.add_rows(acc.data(), p.data(), ld, queries, {rows.data(), type, dim}, count);
          for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(acc[i], wanted[i], 2e-5);
          acc.check();
        }
      }
    }
  }
}

TEST_P(EachIsa, MultipliesWeightsOfAnyShape) {
  for (DType type : kTypes) {
    for (size_t inner : {1, 15, 16, 17, 100, 576}) {
      for (size_t batch : {1, 2, 4, 9, 16}) {
        const size_t rows = 11, first = 2, last = 9;
        Stored w(rows * inner, type, 8);
        Guarded x(batch * inner, 9);
        Guarded out(batch * rows);
        k.matvec(out.data(), rows, x.data(), batch, w.data(), type, inner, first, last);
        for (size_t b = 0; b < batch; ++b) {
          for (size_t o = 0; o < rows; ++o) {
            if (o < first || o >= last) {
              ASSERT_TRUE(std::isnan(out[b * rows + o]));
              continue;
            }
            double sum = 0;
            for (size_t i = 0; i < inner; ++i)
              sum += double{x[b * inner + i]} * w.values[o * inner + i];
            ASSERT_NEAR(out[b * rows + o], sum, 2e-5);
          }
        }
        out.check();
      }
    }
  }
}

TEST_P(EachIsa, MultipliesBlocks) {
  for (size_t m : {0, 1, 2, 5, 6, 7, 13}) {
    for (size_t n : {0, 1, 7, 16, 17, 33, 64, 80, 100}) {
      for (size_t depth : {0, 1, 3, 64, 127, 128, 129, 300}) {
        for (bool accumulate : {false, true}) {
          const size_t lda = depth + 2, ldb = n + 1, ldc = n + 3;
          Guarded a(m * lda, 10), b(depth * ldb, 11), c(m * ldc, 12);
          std::vector<float> before(c.data(), c.data() + c.size());
          k.gemm({.c = c.data(),
                  .ldc = ldc,
                  .a = a.data(),
                  .lda = lda,
                  .b = b.data(),
                  .ldb = ldb,
                  .m = m,
                  .n = n,
                  .k = depth,
                  .accumulate = accumulate});
          for (size_t i = 0; i < m; ++i) {
            for (size_t j = 0; j < ldc; ++j) {
              double sum = accumulate || j >= n ? before[i * ldc + j] : 0;
              for (size_t d = 0; j < n && d < depth; ++d)
                sum += double{a[i * lda + d]} * b[d * ldb + j];
              ASSERT_NEAR(c[i * ldc + j], sum, 3e-5) << m << " " << n << " " << depth;
            }
          }
          c.check();
        }
      }
    }
  }
}

TEST_P(EachIsa, TransposesRows) {
  for (DType type : kTypes) {
    for (size_t dim : kDims) {
      for (size_t count : {0, 1, 3, 4, 7, 33}) {
        Stored rows(count * dim, type, 13);
        const size_t ld = count + 5;
        Guarded out(dim * ld);
        k.transpose_rows(out.data(), ld, {rows.data(), type, dim}, count);
        for (size_t c = 0; c < dim; ++c) {
          for (size_t t = 0; t < ld; ++t) {
            if (t < count) {
              ASSERT_EQ(out[c * ld + t], rows.values[t * dim + c]);
            } else {
              ASSERT_TRUE(std::isnan(out[c * ld + t]));
            }
          }
        }
        out.check();
      }
    }
  }
}

TEST_P(EachIsa, ExponentialIsWithinTwoUlp) {
  std::vector<float> x;
  for (int i = 0; i <= 200000; ++i) x.push_back(-87.25f + 0.00045f * static_cast<float>(i));
  std::vector<float> y = x;
  k.exp_sum(y.data(), 0, y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const double wanted = std::exp(double{x[i]});
    const float w = static_cast<float>(wanted);
    const double ulp = std::nextafter(w, kInf) - w;
    ASSERT_LE(std::abs(y[i] - wanted), 2 * ulp) << x[i];
  }
}

TEST_P(EachIsa, ExponentialSumsAndItsCorners) {
  for (size_t n : kSizes) {
    Guarded x(n, 14, -20, 3);
    if (n > 2) x[2] = -kInf;
    if (n > 7) x[7] = -500;
    std::vector<float> before(x.data(), x.data() + n);
    double wanted = 0;
    for (float v : before) wanted += std::exp(double{v - 3.0f});
    const float sum = k.exp_sum(x.data(), 3, n);
    EXPECT_NEAR(sum, wanted, 1e-6 * (wanted + 1));
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(x[i], std::exp(double{before[i] - 3.0f}), 3e-7 * std::abs(x[i]) + 1e-37);
    if (n > 2) {
      EXPECT_EQ(x[2], 0);
    }
    x.check();
    if (n > 0) {
      x[n - 1] = std::nanf("");
      EXPECT_TRUE(std::isnan(k.exp_sum(x.data(), 0, n)));
    }
  }
}

TEST_P(EachIsa, ReducesAndScalesVectors) {
  for (size_t n : kSizes) {
    Guarded x(n, 15), y(n, 16);
    float largest = -kInf;
    double dot = 0;
    for (size_t i = 0; i < n; ++i) {
      largest = std::max(largest, x[i]);
      dot += double{x[i]} * y[i];
    }
    EXPECT_EQ(k.max(x.data(), n), largest);
    EXPECT_NEAR(k.dot(x.data(), y.data(), n), dot, 2e-5);
    for (int op = 0; op < 4; ++op) {
      Guarded z(n, 17);
      std::vector<float> before(z.data(), z.data() + n);
      if (op == 0) k.add(z.data(), x.data(), n);
      if (op == 1) k.scale(z.data(), 0.3f, n);
      if (op == 2) k.axpy(z.data(), x.data(), 0.3f, n);
      if (op == 3) k.multiply(z.data(), x.data(), y.data(), n);
      for (size_t i = 0; i < n; ++i) {
        const double b = before[i];
        const double wanted = op == 0   ? b + x[i]
                              : op == 1 ? b * 0.3f
                              : op == 2 ? b + double{0.3f} * x[i]
                                        : double{x[i]} * y[i];
        ASSERT_NEAR(z[i], wanted, 2e-7);
      }
      z.check();
    }
  }
}

TEST_P(EachIsa, CapsSoftly) {
  for (size_t n : kSizes) {
    for (const float cap : {0.5f, 30.0f, 50.0f}) {
      Guarded x(n, 26, -4 * cap, 4 * cap);
      if (n > 2) x[0] = 1e30f, x[1] = -1e30f, x[2] = 1e-6f;
      const std::vector<float> in(x.data(), x.data() + n);
      k.soft_cap(x.data(), cap, n);
      for (size_t i = 0; i < n; ++i)
        ASSERT_NEAR(x[i], cap * std::tanh(double{in[i]} / cap), 5e-7 * cap) << in[i];
      x.check();
    }
  }
}

TEST_P(EachIsa, NormalisesActivatesAndRotates) {
  for (size_t n : kSizes) {
    Guarded x(n, 18, -3, 3), w(n, 19), out(n);
    double squares = 0;
    for (size_t i = 0; i < n; ++i) squares += double{x[i]} * x[i];
    k.rms_norm(out.data(), x.data(), w.data(), 1e-5f, n);
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(out[i], x[i] / std::sqrt(squares / double(n) + 1e-5) * w[i], 3e-6);
    out.check();

    Guarded gate(n, 20, -120, 120);
    std::vector<float> g(gate.data(), gate.data() + n);
    k.silu_mul(gate.data(), w.data(), n);
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(gate[i], g[i] / (1 + std::exp(-double{g[i]})) * w[i], 2e-7 * std::abs(g[i]));
    gate.check();

    Guarded bell(n, 25, -9, 9);
    const std::vector<float> in(bell.data(), bell.data() + n);
    k.gelu_mul(bell.data(), w.data(), n);
    for (size_t i = 0; i < n; ++i) {
      const double u = std::sqrt(2 / M_PI) * (in[i] + 0.044715 * std::pow(double{in[i]}, 3));
      ASSERT_NEAR(bell[i], 0.5 * in[i] * (1 + std::tanh(u)) * w[i], 5e-7 * std::abs(in[i]));
    }
    bell.check();

    const size_t half = n;
    Guarded v(2 * half, 21), angle(half, 22, -3, 3), cos(half), sin(half);
    for (size_t i = 0; i < half; ++i) cos[i] = std::cos(angle[i]), sin[i] = std::sin(angle[i]);
    std::vector<float> before(v.data(), v.data() + 2 * half);
    k.rotate(v.data(), cos.data(), sin.data(), 2 * half);
    for (size_t i = 0; i < half; ++i) {
      const double a = before[i], b = before[i + half];
      ASSERT_NEAR(v[i], a * cos[i] - b * sin[i], 3e-7);
      ASSERT_NEAR(v[i + half], b * cos[i] + a * sin[i], 3e-7);
    }
    v.check();
  }
}

TEST_P(EachIsa, NormalisesRowsWhoseSquaresOverflow) {
  for (size_t n : {size_t{1}, size_t{15}, size_t{64}, size_t{4096}}) {
    for (float huge : {2e19f, 1e30f, 3.4e38f}) {
      Guarded x(n, 23, -1, 1), w(n, 24), out(n);
      double squares = 0;
      for (size_t i = 0; i < n; ++i) {
        x[i] *= huge;
        squares += double{x[i]} * x[i];
      }
      k.rms_norm(out.data(), x.data(), w.data(), 1e-5f, n);
      for (size_t i = 0; i < n; ++i)
        ASSERT_NEAR(out[i], x[i] / std::sqrt(squares / double(n)) * w[i], 3e-6) << huge << ' ' << n;
      out.check();
      x[n / 2] = std::numeric_limits<float>::infinity();
      k.rms_norm(out.data(), x.data(), w.data(), 1e-5f, n);
      ASSERT_TRUE(std::isnan(out[n / 2])) << "infinity must not become a number";
    }
  }
}

}  // namespace
}  // namespace pith
