#include "kernels/cuda/launch.h"

namespace pith::cuda {

void launch_early(const void* kernel, const LaunchShape& shape, const void* params,
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
  void* arguments[] = {const_cast<void*>(params)};
  check(cudaLaunchKernelExC(&config, kernel, arguments), what);
}

}  // namespace pith::cuda
