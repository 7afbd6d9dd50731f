#pragma once
// Weights times activations: y = x W^T. Few tokens are bound by reading W (Kernels::matvec and
// multiply_blocks), many by arithmetic (oneDNN; weights in blocks are decoded tile by tile). Work
// is cut by shape alone, so results do not depend on the number of threads.

#include <memory>
#include <span>

#include "core/weight_type.h"
#include "kernels/context.h"

namespace pith {

/// A weight matrix as it lies in the file: row-major [out, in].
struct WeightMatrix {
  const void* data = nullptr;
  WeightType type = WeightType::kF32;
  size_t out = 0, in = 0;

  const std::byte* row(size_t o) const {
    return static_cast<const std::byte*>(data) + o * row_bytes(type, in);
  }
  size_t bytes() const { return out * row_bytes(type, in); }
};

enum class MatmulPrecision : uint8_t {
  /// Many tokens times bf16 weights: activations are rounded to bf16 where the CPU multiplies bf16
  /// in hardware (sums stay f32). Weights in blocks: those of many tokens likewise, after decoding
  /// to bf16; those of few tokens are rounded to 8 bits in blocks of 32.
  kFast,
  /// Activations stay f32 and 16-bit weights are widened, tile by tile; few tokens times weights in
  /// blocks: 16 bits in blocks of 32, whose error is that of f32 sums.
  kF32,
};

/// One product: y[t, o] = <x[t, :], w[o, :]>.
struct Product {
  float* y = nullptr;  // [T, w->out], dense
  const WeightMatrix* w = nullptr;
};

/// Writes row t of the input, f32 [in], to `out`. Rows are asked for once each, from any thread.
class RowSource {
 public:
  template <class F>
  RowSource(F& f)  // NOLINT(google-explicit-constructor)
      : object_(&f), call_([](void* o, float* out, size_t t) { (*static_cast<F*>(o))(out, t); }) {}
  void operator()(float* out, size_t t) const { call_(object_, out, t); }

 private:
  void* object_;
  void (*call_)(void*, float*, size_t);
};

enum class RowsOf : uint8_t {
  /// Rows of one prompt: their number may decide how they are multiplied, and with it the last
  /// bits of the results.
  kOnePrompt,
  /// Each row belongs to another session; its result is that without the others, bit for bit.
  kMany,
};

/// Runs products and keeps what they reuse: oneDNN's primitives, and scratch counted as kScratch.
/// One caller at a time.
class Matmul {
 public:
  /// The context must outlive it.
  explicit Matmul(const Context& context, MatmulPrecision precision = MatmulPrecision::kFast);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  /// All `products` of one input x [tokens, in], whose rows `row` makes: normalising or gating
  /// there saves a trip through memory. Rows are complete before any product starts, so a product
  /// may write over what its rows were made from.
  void run(size_t tokens, size_t in, RowSource row, std::span<const Product> products,
           RowsOf rows = RowsOf::kOnePrompt);

  /// Makes buffers large enough for such a run, and what it is made by.
  void prepare(size_t tokens, size_t in, std::span<const Product> products, RowsOf rows);

  /// True if bf16 products run on bf16 hardware here.
  bool bf16_hardware() const;

 private:
  struct State;
  struct Way;
  Way way(size_t tokens, std::span<const Product> products, RowsOf rows) const;
  std::unique_ptr<State> state_;
};

/// One product, for callers without a stream of them. x [tokens, in], y [tokens, out], f32, dense.
void matmul(const Context& context, float* y, const float* x, const WeightMatrix& w, size_t tokens,
            MatmulPrecision precision = MatmulPrecision::kFast);

}  // namespace pith
