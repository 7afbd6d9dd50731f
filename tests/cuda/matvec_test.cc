// Matrix-vector products on the GPU against double precision on the CPU: every type, every way in
// and out, rows shorter and longer than a warp's batch.

#include <cmath>

#include "kernels/cuda/matvec.h"

#include "harness.h"
#include "kernels/cuda/matmul.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

struct Weights {
  std::vector<float> numbers;  // as stored
  DeviceArray<uint16_t> bytes;
  DeviceMatrix matrix;
};

Weights make_weights(MemoryCounter& counter, DType dtype, size_t out, size_t in) {
  Weights w;
  w.matrix = {nullptr, dtype, out, in};
  const auto drawn = normals(out * in, dtype == DType::kF32 ? DType::kBF16 : dtype, 11);
  w.numbers = widen(drawn, dtype == DType::kF32 ? DType::kBF16 : dtype);
  if (dtype == DType::kF32) {
    std::vector<uint16_t> raw(2 * out * in);
    std::memcpy(raw.data(), w.numbers.data(), raw.size() * 2);
    w.bytes = to_device(counter, raw);
  } else {
    w.bytes = to_device(counter, drawn);
  }
  w.matrix.data = w.bytes.data();
  return w;
}

struct Shape {
  size_t out, in;
};

/// A product's arguments, drawn.
struct Product {
  Product(DType dtype, const Shape& s, MatvecEnd end_, size_t tokens_)
      : shape(s),
        end(end_),
        tokens(tokens_),
        results(s.out / static_cast<size_t>(parts_of(end_))),
        w(make_weights(counter, dtype, s.out, s.in)),
        x(draw(tokens * s.in, 12)),
        norm(draw(s.in, 13)),
        bias(draw(s.out, 14)),
        old(end == MatvecEnd::kAdd ? draw(tokens * results, 15)
                                   : std::vector<float>(tokens * results, NAN)),
        x_device(to_device(counter, x)),
        norm_device(to_device(counter, norm)),
        bias_device(to_device(counter, bias)) {}

  static std::vector<float> draw(size_t n, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> numbers(n);
    for (float& f : numbers) f = normal(random);
    return numbers;
  }
  /// y [count, results] of tokens first, first + 1, ...
  std::vector<float> run(size_t first, size_t count, bool with_norm, bool with_bias,
                         bool together = true) {
    const auto from = old.begin() + static_cast<ptrdiff_t>(first * results);
    const auto y = to_device(
        counter, std::vector<float>(from, from + static_cast<ptrdiff_t>(count * results)));
    matvec({y.data(), results, w.matrix, x_device.data() + first * shape.in,
            with_norm ? norm_device.data() : nullptr, 0.5f,
            with_bias ? bias_device.data() : nullptr, end, count, together},
           nullptr);
    return to_host(y);
  }
  std::vector<double> want(size_t token, bool with_norm, bool with_bias) const {
    const float* from = x.data() + token * shape.in;
    double squares = 0;
    for (size_t i = 0; i < shape.in; ++i) squares += double{from[i]} * from[i];
    const double factor =
        with_norm ? 1 / std::sqrt(squares / static_cast<double>(shape.in) + 0.5) : 1;
    const auto product = [&](size_t o) {
      double sum = with_bias ? bias[o] : 0;
      for (size_t i = 0; i < shape.in; ++i) {
        sum += factor * from[i] * (with_norm ? norm[i] : 1) * w.numbers[o * shape.in + i];
      }
      return sum;
    };
    std::vector<double> out(results);
    for (size_t o = 0; o < results; ++o) {
      out[o] = product(o);
      if (end == MatvecEnd::kAdd) out[o] += old[token * results + o];
      if (end == MatvecEnd::kGate) out[o] = out[o] / (1 + std::exp(-out[o])) * product(o + results);
      if (end == MatvecEnd::kGelu) {
        const double g = out[o];
        out[o] = 0.5 * g * (1 + std::tanh(std::sqrt(2 / M_PI) * (g + 0.044715 * g * g * g))) *
                 product(o + results);
      }
    }
    return out;
  }

  /// Of all results of a token together, on average over weights; 0 where that is not the sums'.
  double expected_squares(size_t token, bool with_norm) const {
    if (parts_of(end) == 2) return 0;
    double squares = 0, scaled = 0;
    for (size_t i = 0; i < shape.in; ++i) {
      const double a = x[token * shape.in + i], b = with_norm ? a * norm[i] : a;
      squares += a * a;
      scaled += b * b;
    }
    const double mean = squares / static_cast<double>(shape.in) + 0.5;
    return static_cast<double>(results) * (with_norm ? scaled / mean : scaled);
  }

  MemoryCounter counter;
  Shape shape;
  MatvecEnd end;
  size_t tokens, results;
  Weights w;
  std::vector<float> x, norm, bias, old;
  DeviceArray<float> x_device, norm_device, bias_device;
};

double error_of(DType dtype, const Shape& s, MatvecEnd end, bool norm, bool bias, size_t tokens,
                bool together) {
  Product p(dtype, s, end, tokens);
  const auto got = p.run(0, tokens, norm, bias, together);
  double worst = 0;
  for (size_t t = 0; t < tokens; ++t) {
    const auto from = got.begin() + static_cast<ptrdiff_t>(t * p.results);
    const auto want = p.want(t, norm, bias);
    // A few sums may be near zero by chance: then of what they are on average.
    double error = 0, all = 0;
    for (size_t o = 0; o < p.results; ++o) {
      error += (from[o] - want[o]) * (from[o] - want[o]);
      all += want[o] * want[o];
    }
    if (!std::isfinite(error)) return 1;
    worst = std::max(worst, std::sqrt(error / std::max(all, p.expected_squares(t, norm))));
  }
  return worst;
}

TEST(CudaMatvec, EveryTypeAndShape) {
  PITH_NEEDS_GPU();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Shape s : {Shape{1, 8}, {2, 64}, {7, 2048}, {96, 2056}, {5000, 264}, {64, 14336}}) {
      for (const size_t tokens : {1, 5}) {
        for (const bool together : {false, true}) {
          EXPECT_LT(error_of(dtype, s, MatvecEnd::kStore, false, false, tokens, together), 1e-5)
              << to_string(dtype) << " " << s.out << " x " << s.in << ", tokens " << tokens;
        }
      }
    }
  }
}

TEST(CudaMatvec, EveryWayInAndOut) {
  PITH_NEEDS_GPU();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const MatvecEnd end :
         {MatvecEnd::kStore, MatvecEnd::kAdd, MatvecEnd::kGate, MatvecEnd::kGelu}) {
      for (const bool norm : {false, true}) {
        for (const bool bias : {false, true}) {
          EXPECT_LT(error_of(dtype, {600, 520}, end, norm, bias, 3, false), 1e-5);
          EXPECT_LT(error_of(dtype, {600, 520}, end, norm, bias, 3, true), 1e-5);
        }
      }
    }
  }
}

// Any number of tokens together: each gets the bits that it gets alone. Shapes with more and fewer
// blocks than the card has multiprocessors, and rows that are no whole tiles.
TEST(CudaMatvec, TokensDoNotSeeEachOther) {
  PITH_NEEDS_GPU();
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const Shape s : {Shape{70, 328}, {20000, 136}}) {
      for (const MatvecEnd end : {MatvecEnd::kAdd, MatvecEnd::kGate}) {
        if (left_out()) continue;
        Product p(dtype, s, end, 70);
        std::vector<float> alone;
        for (size_t t = 0; t < p.tokens; ++t) {
          const auto one = p.run(t, 1, true, true);
          alone.insert(alone.end(), one.begin(), one.end());
        }
        for (const size_t count : {2, 7, 8, 9, 16, 17, 32, 33, 70}) {
          for (const size_t first : {size_t{0}, p.tokens - count}) {
            const auto together = p.run(first, count, true, true);
            EXPECT_EQ(std::memcmp(together.data(), alone.data() + first * p.results,
                                  together.size() * sizeof(float)),
                      0)
                << to_string(dtype) << " " << s.out << ", " << count << " tokens from " << first;
          }
        }
      }
    }
  }
}

TEST(CudaMatvec, RefusesRowsThatItCannotRead) {
  PITH_NEEDS_GPU();
  MatvecCall call;
  call.w = {nullptr, DType::kBF16, 8, 12};
  EXPECT_THROW(call.check(), Error);
}

TEST(CudaMatmul, AgreesWithDoublePrecision) {
  PITH_NEEDS_GPU();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    MemoryCounter counter;
    const size_t tokens = 37, out = 96, in = 264;
    const auto w = make_weights(counter, dtype, out, in);
    const auto x = make_weights(counter, dtype, tokens, in);
    const std::vector<float> old(tokens * out, 2.0f);
    DeviceMatmul matmul(counter, nullptr);
    for (const bool add : {false, true}) {
      const auto y = to_device(counter, old);
      const auto* data = static_cast<const std::byte*>(w.matrix.data);
      const MixedMatrix mixed{{{data, weight_type(dtype), out}}, out, in};
      matmul.run(y.data(), x.matrix.data, dtype, mixed, tokens, add);
      std::vector<double> want(tokens * out);
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t o = 0; o < out; ++o) {
          double sum = add ? 2 : 0;
          for (size_t i = 0; i < in; ++i) {
            sum += double{x.numbers[t * in + i]} * w.numbers[o * in + i];
          }
          want[t * out + o] = sum;
        }
      }
      EXPECT_LT(relative_error(to_host(y), want), 1e-5) << to_string(dtype);
    }
  }
}

}  // namespace
}  // namespace pith::cuda
