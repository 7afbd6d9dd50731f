#pragma once
// Dense weights times a few tokens' activations: what decode spends its time on. The steps of a
// layer before and after a product are fused into it. Two ways. Alone, each token reads the weights
// once, and activations are f32: the least time for one token. Together, up to kMostAtOnce tokens
// share one reading of 16-bit weights, which see 17 bits of an activation; what a token gets does
// not depend, bit for bit, on the other tokens and their number.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "kernels/cuda/matvec_end.h"
#include "pith/dtype.h"

namespace pith::cuda {

/// A dense weight matrix on the device: row-major [out, in].
struct DeviceMatrix {
  const void* data = nullptr;
  DType dtype = DType::kBF16;
  size_t out = 0, in = 0;
};

/// y[t] <- end(s), s = W x[t] + bias, where x is RMS-normalised first if `norm` is set.
struct MatvecCall {
  float* y = nullptr;  // [tokens, ld], of which out are written, or out / 2 if gated
  size_t ld = 0;
  DeviceMatrix w;
  const float* x = nullptr;     // [tokens, in]
  const float* norm = nullptr;  // [in] weight of the norm, or null
  float eps = 0;
  const float* bias = nullptr;  // [out] or null
  MatvecEnd end = MatvecEnd::kStore;
  size_t tokens = 1;
  bool together = false;  ///< which way; weights in f32 know the first alone

  /// Throws kUnsupported for shapes that the kernel does not know.
  void check() const;
};

void matvec(const MatvecCall& call, cudaStream_t stream);

}  // namespace pith::cuda
