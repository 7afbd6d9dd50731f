#pragma once
// The shape of a kernel's launch. See launch.cuh.

#include "kernels/cuda/device.h"

namespace pith::cuda {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  ///< beside what the kernel declares
};

/// A kernel of one parameter for whom does not know their types (late_kernel() in launch.cuh).
struct LateKernel {
  void (*kernel)() = nullptr;
  void (*launch)(void (*kernel)(), const LaunchShape&, const void* params, cudaStream_t,
                 const char* what) = nullptr;

  void operator()(const LaunchShape& shape, const void* params, cudaStream_t stream,
                  const char* what) const {
    launch(kernel, shape, params, stream, what);
  }
  bool operator==(const LateKernel&) const = default;
};

}  // namespace pith::cuda
