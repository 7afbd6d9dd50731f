#pragma once
// Dense weights times one token's activations: what decode spends its time on. Each is read once,
// activations stay f32. What stands before and after a product in a layer is fused into it.

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

/// s = W x + bias, where x is RMS-normalised first if `norm` is set.
struct MatvecCall {
  float* y = nullptr;  // [out], [out / 2] if gated
  DeviceMatrix w;
  const float* x = nullptr;     // [in]
  const float* norm = nullptr;  // [in] weight of the norm, or null
  float eps = 0;
  const float* bias = nullptr;  // [out] or null
  MatvecEnd end = MatvecEnd::kStore;

  /// Throws kUnsupported for shapes that the kernel does not know.
  void check() const;
};

void matvec(const MatvecCall& call, cudaStream_t stream);

}  // namespace pith::cuda
