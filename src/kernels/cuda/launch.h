#pragma once
// The shape of a kernel's launch. See launch.cuh.

#include "kernels/cuda/device.h"

namespace pith::cuda {

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  ///< beside what the kernel declares
};

}  // namespace pith::cuda
