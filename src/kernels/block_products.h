#pragma once
// Weights that stay in blocks of codes (core/weight_type.h) times activations rounded to whole
// numbers. The sums over a block are formed in integers; scales are f32. Rounding to 8 bits in
// blocks of 32 costs a relative square error of 3e-5 on Gaussian inputs, to 16 bits 5e-10.

#include <cstddef>
#include <cstdint>

#include "core/weight_type.h"
#include "kernels/kernels.h"

namespace pith {

/// 256 activations of one token, zeros past the row's end.
struct alignas(64) RoundedInputs {
  float scale[8];      ///< of each 32
  float sum[8];        ///< scale times the sum of each 32 whole numbers
  float half_sum[16];  ///< the same of each 16
  int8_t codes[256];   ///< the whole number, or its high byte
};
/// The same to 16 bits: a number is 256 code + low, both signed.
struct alignas(64) RoundedWideInputs {
  RoundedInputs high;
  int8_t low[256];
};

inline constexpr size_t kInputStep = 256;
/// Bytes of one token's n activations.
constexpr size_t rounded_bytes(size_t n, bool wide) {
  return (n + kInputStep - 1) / kInputStep *
         (wide ? sizeof(RoundedWideInputs) : sizeof(RoundedInputs));
}

/// out[t, o] = <x[t, :], w[o, :]>
struct BlockProduct {
  float* out = nullptr;  // [tokens, ld]
  size_t ld = 0;
  const std::byte* x = nullptr;  // [tokens, rounded_bytes(in)]
  bool wide = false;
  size_t tokens = 0;
  const std::byte* w = nullptr;  // [rows, row_bytes(type, in)]
  WeightType type = WeightType::kQ8Zero;
  size_t rows = 0, in = 0;
};

/// One table an instruction set, as Kernels; in a table of its own, since only weights have blocks.
struct BlockKernels {
  /// out[n] <- numbers of a block format, whole blocks: the same to the last bit everywhere.
  void (*decode)(float* out, const void* blocks, WeightType type, size_t n);
  /// x [n] rounded for multiply, to 16 bits if `wide`, else to 8. Numbers below 10^-30 count as 0;
  /// a NaN or an infinity makes NaN of all products.
  void (*round_inputs)(std::byte* out, const float* x, size_t n, bool wide);
  /// Outputs [first, last). Memory-bound: reads each row once for up to four tokens.
  void (*multiply)(const BlockProduct& product, size_t first, size_t last);
};

/// Those of the table's instruction set. CPUs with AVX-512 but no byte products take AVX2's.
const BlockKernels& block_kernels(const Kernels& kernels);

}  // namespace pith
