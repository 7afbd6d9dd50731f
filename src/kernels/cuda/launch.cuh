#pragma once
// How kernels are launched, and what a kernel launched early must call.

#include <type_traits>

#include "kernels/cuda/launch.h"

namespace pith::cuda {

/// Launches kernel(arguments...); `early`: maybe before the kernel ahead of it in the stream has
/// ended. Throws Error(kInternal) that names `what`.
template <class... P>
void launch_as(void (*kernel)(P...), const LaunchShape& shape, cudaStream_t stream,
               const char* what, bool early, const std::type_identity_t<P>&... arguments) {
  if (shape.shared_bytes > 0) {  // more than 48 KB must be asked for
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          what);
  }
  cudaLaunchConfig_t config{};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = early ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

template <class... P>
void launch_kernel(void (*kernel)(P...), const LaunchShape& shape, cudaStream_t stream,
                   const char* what, const std::type_identity_t<P>&... arguments) {
  launch_as(kernel, shape, stream, what, false, arguments...);
}

/// By programmatic dependent launch, from sm_90 on: the kernel must call wait_for_predecessor()
/// before it touches anything that another kernel writes, and each of its threads must call it
/// before it ends.
template <class Params>
void launch_early(void (*kernel)(Params), const LaunchShape& shape,
                  const std::type_identity_t<Params>& params, cudaStream_t stream,
                  const char* what) {
  launch_as(kernel, shape, stream, what, device_info().major >= 9, params);
}

/// To be launched early, later.
template <class Params>
LateKernel late_kernel(void (*kernel)(Params)) {
  const auto launch = [](void (*any)(), const LaunchShape& shape, const void* params,
                         cudaStream_t stream, const char* what) {
    launch_early(reinterpret_cast<void (*)(Params)>(any), shape,
                 *static_cast<const Params*>(params), stream, what);
  };
  return {reinterpret_cast<void (*)()>(kernel), launch};
}

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

}  // namespace pith::cuda
