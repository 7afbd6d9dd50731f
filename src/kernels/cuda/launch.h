#pragma once
// Kernels of one parameter, whose type the host may have forgotten. See launch.cuh.

#include "kernels/cuda/device.h"

namespace pith::cuda {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
};

/// May begin before the kernel ahead of it in the stream has ended. `params`: the bytes of the
/// kernel's parameter.
void launch_early(const void* kernel, const LaunchShape& shape, const void* params,
                  cudaStream_t stream, const char* what);

}  // namespace pith::cuda
