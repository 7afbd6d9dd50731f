#pragma once
// Weights times activations: y = x W^T. One token is bound by reading W (matvec), many tokens by
// arithmetic (oneDNN).

#include "kernels/context.h"

namespace pith {

/// A weight matrix as it lies in the file: row-major [out, in].
struct WeightMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  size_t out = 0, in = 0;
};

/// y[t, o] = <x[t, :], w[o, :]>, t < tokens. x [tokens, in], y [tokens, out], f32, dense.
/// f32 weights: f32 arithmetic. 16-bit weights: products of f32 activations for few tokens; for
/// many, operands of bf16 where the CPU multiplies bf16 matrices in hardware and weights are bf16,
/// else weights widened to f32 tile by tile. Work is cut by shape, so results do not depend on the
/// number of threads.
void matmul(const Context& context, float* y, const float* x, const WeightMatrix& w, size_t tokens);

}  // namespace pith
