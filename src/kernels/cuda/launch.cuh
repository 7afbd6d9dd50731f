#pragma once
// Launches that may begin before the kernel ahead of them in the stream has ended (programmatic
// dependent launch, sm_90): a kernel launched so must call wait_for_predecessor() before it touches
// anything that another kernel writes, and each of its threads must call it before it ends.

#include "kernels/cuda/device.h"

namespace pith::cuda {

__device__ inline void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
/// Lets the next kernel's blocks come as soon as there is room for them.
__device__ inline void let_successor_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;
};

template <class Kernel, class Params>
void launch_early(Kernel kernel, const LaunchShape& shape, const Params& params,
                  cudaStream_t stream, const char* what) {
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = device_info().major >= 9 ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, params), what);
}

}  // namespace pith::cuda
