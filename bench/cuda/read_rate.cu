// The card's read rate, against which decode attention is held: 16-byte loads, eight in flight a
// thread, a sum that keeps the compiler from dropping them.

#include <cuda_runtime.h>

namespace pith::cuda {
namespace {

__global__ void __launch_bounds__(512) read_kernel(float* sum, const float4* from, size_t count) {
  float total = 0;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += 8 * stride) {
    float4 x[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      x[j] = i + j * stride < count ? __ldcs(from + i + j * stride) : float4{0, 0, 0, 0};
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) total += x[j].x + x[j].y + x[j].z + x[j].w;
  }
  if (total == 12345.0f) *sum = total;
}

}  // namespace

void read_all(float* sum, const void* from, size_t bytes, cudaStream_t stream) {
  read_kernel<<<528, 512, 0, stream>>>(sum, static_cast<const float4*>(from), bytes / 16);
}

}  // namespace pith::cuda
