// Matrix-vector products on the GPU against double precision on the CPU: every type, every way in
// and out, rows shorter and longer than a warp's batch.

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

double error_of(DType dtype, const Shape& s, MatvecEnd end, bool norm, bool bias) {
  MemoryCounter counter;
  const auto w = make_weights(counter, dtype, s.out, s.in);
  const auto draw = [](size_t n, uint32_t seed) {
    return widen(normals(n, DType::kBF16, seed), DType::kBF16);
  };
  const auto x = draw(s.in, 12), weight = draw(s.in, 13), b = draw(s.out, 14);
  const size_t results = end == MatvecEnd::kGate ? s.out / 2 : s.out;
  const auto old = end == MatvecEnd::kAdd ? draw(results, 15) : std::vector<float>(results, NAN);
  const auto y = to_device(counter, old), x_device = to_device(counter, x);
  const auto weight_device = to_device(counter, weight), b_device = to_device(counter, b);
  MatvecCall call{y.data(),
                  w.matrix,
                  x_device.data(),
                  norm ? weight_device.data() : nullptr,
                  0.5f,
                  bias ? b_device.data() : nullptr,
                  end};
  matvec(call, nullptr);

  double squares = 0;
  for (float v : x) squares += double{v} * v;
  const double factor = norm ? 1 / std::sqrt(squares / static_cast<double>(s.in) + 0.5) : 1;
  const auto product = [&](size_t o) {
    double sum = bias ? b[o] : 0;
    for (size_t i = 0; i < s.in; ++i) {
      sum += factor * x[i] * (norm ? weight[i] : 1) * w.numbers[o * s.in + i];
    }
    return sum;
  };
  std::vector<double> want(results);
  for (size_t o = 0; o < results; ++o) {
    want[o] = product(o);
    if (end == MatvecEnd::kAdd) want[o] += old[o];
    if (end == MatvecEnd::kGate)
      want[o] = want[o] / (1 + std::exp(-want[o])) * product(o + results);
  }
  return relative_error(to_host(y), want);
}

TEST(CudaMatvec, EveryTypeAndShape) {
  PITH_NEEDS_GPU();
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Shape s : {Shape{1, 8}, {2, 64}, {7, 2048}, {96, 2056}, {5000, 264}, {64, 14336}}) {
      EXPECT_LT(error_of(dtype, s, MatvecEnd::kStore, false, false), 1e-5)
          << to_string(dtype) << " " << s.out << " x " << s.in;
    }
  }
}

TEST(CudaMatvec, EveryWayInAndOut) {
  PITH_NEEDS_GPU();
  for (const MatvecEnd end : {MatvecEnd::kStore, MatvecEnd::kAdd, MatvecEnd::kGate}) {
    for (const bool norm : {false, true}) {
      for (const bool bias : {false, true}) {
        EXPECT_LT(error_of(DType::kBF16, {600, 520}, end, norm, bias), 1e-5);
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
