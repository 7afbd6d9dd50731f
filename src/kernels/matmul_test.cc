#include "kernels/matmul.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <thread>
#include <vector>

#include "core/dtype.h"
#include "core/philox.h"
#include "pith/error.h"

namespace pith {
namespace {

/// A random matrix in a storage type, with the values that the storage kept.
struct TestMatrix {
  TestMatrix(size_t out, size_t in, DType dtype, uint32_t stream)
      : bytes(out * in * size_of(dtype)), values(out * in) {
    const Philox random(5, stream, 0);
    for (size_t i = 0; i < values.size(); ++i) {
      const float x = random.uniform(i) * 2 - 1;
      if (dtype == DType::kF32) {
        values[i] = x;
        std::memcpy(bytes.data() + 4 * i, &x, 4);
        continue;
      }
      const uint16_t h = dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
      values[i] = dtype == DType::kF16 ? f16_to_f32(h) : bf16_to_f32(h);
      std::memcpy(bytes.data() + 2 * i, &h, 2);
    }
    matrix = {bytes.data(), weight_type(dtype), out, in};
  }
  std::vector<std::byte> bytes;
  std::vector<double> values;  // [out, in]
  WeightMatrix matrix;
};

std::vector<float> random_input(size_t count) {
  const Philox random(6, 0, 0);
  std::vector<float> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = random.uniform(i) * 2 - 1;
  return x;
}

/// Largest |y - x w^T| over sqrt(in), against a sum in double.
double worst_error(const std::vector<float>& y, const std::vector<float>& x, const TestMatrix& w,
                   size_t tokens) {
  const size_t in = w.matrix.in, out = w.matrix.out;
  double worst = 0;
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t o = 0; o < out; ++o) {
      double sum = 0;
      for (size_t i = 0; i < in; ++i) sum += double{x[t * in + i]} * w.values[o * in + i];
      const double error = std::abs(y[t * out + o] - sum);
      if (!(error <= worst)) worst = error;
    }
  }
  return worst / std::sqrt(static_cast<double>(in));
}

struct Machine {
  explicit Machine(int threads, std::string_view isa = "")
      : pool(threads), memory(0, true), context{pool, memory, kernels_for(isa)} {}
  ThreadPool pool;
  MemoryCounter memory;
  Context context;
};

TEST(Matmul, EveryShapeAndTypeMatchesASumInDouble) {
  Machine m(2);
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (auto [out, in] : std::vector<std::pair<size_t, size_t>>{
             {1, 16}, {16, 16}, {129, 64}, {64, 80}, {300, 96}, {128, 33}, {257, 1}}) {
      const TestMatrix w(out, in, dtype, 1);
      for (size_t tokens : {1, 2, 3, 8, 9, 63, 130}) {
        const auto x = random_input(tokens * in);
        for (auto precision : {MatmulPrecision::kF32, MatmulPrecision::kFast}) {
          SCOPED_TRACE(testing::Message()
                       << to_string(dtype) << " " << tokens << " x " << in << " -> " << out);
          std::vector<float> y(tokens * out, NAN);
          matmul(m.context, y.data(), x.data(), w.matrix, tokens, precision);
          // Rounding inputs to bf16 costs up to 2^-9 of each, at random.
          const bool rounded = precision == MatmulPrecision::kFast && dtype == DType::kBF16;
          EXPECT_LE(worst_error(y, x, w, tokens), rounded ? 6e-3 : 2e-6);
        }
      }
    }
  }
}

TEST(Matmul, TilesOfManyTokensAndSeveralProductsAgree) {
  Machine m(3);
  constexpr size_t kTokens = 1030, kIn = 48;  // three tiles of tokens
  const TestMatrix a(200, kIn, DType::kBF16, 1), b(16, kIn, DType::kBF16, 2),
      c(128, kIn, DType::kF32, 3);
  const auto x = random_input(kTokens * kIn);
  std::vector<float> ya(kTokens * 200), yb(kTokens * 16), yc(kTokens * 128);
  const Product products[] = {
      {ya.data(), &a.matrix}, {yb.data(), &b.matrix}, {yc.data(), &c.matrix}};
  auto row = [&](float* out, size_t t) { std::memcpy(out, x.data() + t * kIn, kIn * 4); };
  Matmul matmul(m.context);
  matmul.run(kTokens, kIn, row, products);
  EXPECT_LE(worst_error(ya, x, a, kTokens), 2e-6);  // f32, because one of them is not bf16
  EXPECT_LE(worst_error(yb, x, b, kTokens), 2e-6);
  EXPECT_LE(worst_error(yc, x, c, kTokens), 2e-6);
  matmul.run(kTokens, kIn, row, {products, 2});
  EXPECT_LE(worst_error(ya, x, a, kTokens), 6e-3);
  EXPECT_LE(worst_error(yb, x, b, kTokens), 6e-3);
  EXPECT_GT(worst_error(ya, x, a, kTokens), matmul.bf16_hardware() ? 1e-4 : 0);
}

TEST(Matmul, TheNumberOfThreadsChangesNoBit) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const TestMatrix w(530, 96, dtype, 1);
    for (size_t tokens : {1, 5, 600}) {
      const auto x = random_input(tokens * 96);
      std::vector<std::vector<float>> results;
      for (int threads : {1, 2, 7}) {
        Machine m(threads);
        results.emplace_back(tokens * 530);
        matmul(m.context, results.back().data(), x.data(), w.matrix, tokens);
      }
      EXPECT_EQ(results[0], results[1]);
      EXPECT_EQ(results[0], results[2]);
    }
  }
}

/// Random weights of any type, whose scales are small numbers.
std::vector<std::byte> random_weights(WeightType type, size_t count) {
  const Philox random(8, static_cast<uint32_t>(type), 0);
  std::vector<std::byte> bytes(row_bytes(type, count));
  if (const auto dense = dense_type(type)) {
    for (size_t i = 0; i < count; ++i) {
      const float x = random.uniform(i) - 0.5f;
      const uint16_t half = dense == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
      const void* from = dense == DType::kF32 ? static_cast<const void*>(&x) : &half;
      std::memcpy(bytes.data() + i * size_of(*dense), from, size_of(*dense));
    }
    return bytes;
  }
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(random.words(i)[0]);
  for (size_t at = 0; at < bytes.size(); at += block_bytes(type))
    for (const uint8_t offset : scale_offsets(type)) {
      const uint16_t half = f32_to_f16(random.uniform(at + offset) * 0.01f);
      std::memcpy(bytes.data() + at + offset, &half, 2);
    }
  return bytes;
}

TEST(Matmul, RowsOfManyComeOutAsEachWouldAlone) {
  constexpr size_t kIn = 768, kOut = 83, kMost = 64;
  const auto x = random_input(kMost * kIn);
  for (std::string_view isa : available_isas()) {
    Machine m(2, isa);
    for (const WeightType type : weight_types()) {
      const auto bytes = random_weights(type, kOut * kIn);
      const WeightMatrix w{bytes.data(), type, kOut, kIn};
      for (const auto precision : {MatmulPrecision::kFast, MatmulPrecision::kF32}) {
        Matmul products(m.context, precision);
        const auto run = [&](size_t first, size_t count) {
          std::vector<float> y(count * kOut);
          auto row = [&](float* out, size_t t) {
            std::memcpy(out, x.data() + (first + t) * kIn, kIn * sizeof(float));
          };
          const Product product{y.data(), &w};
          products.run(count, kIn, row, {&product, 1}, RowsOf::kMany);
          return y;
        };
        std::vector<float> expected;
        for (size_t t = 0; t < kMost; ++t)
          for (const float one : run(t, 1)) expected.push_back(one);
        for (const size_t count : {1, 2, 3, 4, 5, 7, 8, 9, 12, 16, 17, 31, 33, 64}) {
          const size_t first = kMost - count;
          const auto y = run(first, count);
          EXPECT_EQ(std::memcmp(y.data(), expected.data() + first * kOut, 4 * y.size()), 0)
              << isa << " " << to_string(type) << " " << count;
        }
      }
    }
  }
}

TEST(Matmul, ForcedInstructionSetsAreObeyed) {
  const TestMatrix w(64, 64, DType::kBF16, 1);
  const auto x = random_input(20 * 64);
  for (std::string_view isa : available_isas()) {
    Machine m(1, isa);
    std::vector<float> y(20 * 64);
    matmul(m.context, y.data(), x.data(), w.matrix, 20);
    const bool rounded = Matmul(m.context).bf16_hardware();
    EXPECT_TRUE(isa.starts_with("avx512") || !rounded) << isa;
    EXPECT_LE(worst_error(y, x, w, 20), rounded ? 6e-3 : 2e-6) << isa;
  }
}

TEST(Matmul, LeavesTheCallersOpenMpSettingAlone) {
  Machine m(1);
  const TestMatrix w(64, 64, DType::kF32, 1);
  const auto x = random_input(20 * 64);
  std::vector<float> y(20 * 64);
  omp_set_num_threads(3);
  matmul(m.context, y.data(), x.data(), w.matrix, 20);
  EXPECT_EQ(omp_get_max_threads(), 3);
}

// A handler's frame must lie on the thread's own stack: oneDNN's kernels run on one of their own.
std::atomic<int> handled{0}, elsewhere{0};
const std::byte *stack_begin = nullptr, *stack_end = nullptr;

void look_at_stack(int /*signal*/) {
  const std::byte here{};
  handled.fetch_add(1);
  if (&here < stack_begin || &here >= stack_end) elsewhere.fetch_add(1);
}

TEST(Matmul, SignalsNeverMeetTheStackOfAGeneratedKernel) {
  pthread_attr_t attributes;
  ASSERT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
  void* begin = nullptr;
  size_t bytes = 0;
  pthread_attr_getstack(&attributes, &begin, &bytes);
  pthread_attr_destroy(&attributes);
  stack_begin = static_cast<const std::byte*>(begin), stack_end = stack_begin + bytes;
  struct sigaction action = {}, before = {};
  action.sa_handler = look_at_stack;
  sigaction(SIGUSR1, &action, &before);
  Machine m(1);
  const TestMatrix w(256, 512, DType::kF32, 9);
  const std::vector<float> x = random_input(64 * 512);
  std::vector<float> y(64 * 256);
  std::atomic<bool> done{false};
  const pthread_t self = pthread_self();
  std::thread sender([&] {
    while (!done) {
      pthread_kill(self, SIGUSR1);
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  });
  for (int i = 0; i < 400; ++i)
    matmul(m.context, y.data(), x.data(), w.matrix, 64, MatmulPrecision::kF32);
  done = true;
  sender.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_GT(handled.load(), 0);
  EXPECT_EQ(elsewhere.load(), 0) << "of " << handled.load();
}

TEST(Matmul, ScratchIsCountedAndMismatchesAreRefused) {
  Machine m(2);
  const TestMatrix w(64, 64, DType::kF16, 1);
  {
    Matmul matmul(m.context);
    std::vector<float> y(20 * 64);
    auto row = [](float* out, size_t) { std::fill(out, out + 64, 1.0f); };
    const Product product{y.data(), &w.matrix};
    matmul.run(20, 64, row, {&product, 1});
    EXPECT_GE(m.memory.bytes(MemoryKind::kScratch), 20u * 64 * 4 + 64 * 64 * 4);
    EXPECT_THROW(matmul.run(20, 32, row, {&product, 1}), Error);
    matmul.run(0, 64, row, {&product, 1});
  }
  EXPECT_EQ(m.memory.total(), 0u);
}

}  // namespace
}  // namespace pith
