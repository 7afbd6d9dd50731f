#pragma once
// Launches that may begin before the kernel ahead of them in the stream has ended (programmatic
// dependent launch, sm_90): a kernel launched so must call wait_for_predecessor() before it touches
// anything that another kernel writes, and each of its threads must call it before it ends.

#include "kernels/cuda/launch.h"

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

template <class Params>
void launch_early(void (*kernel)(Params), const LaunchShape& shape, const Params& params,
                  cudaStream_t stream, const char* what) {
  launch_early(reinterpret_cast<const void*>(kernel), shape, &params, stream, what);
}

}  // namespace pith::cuda
