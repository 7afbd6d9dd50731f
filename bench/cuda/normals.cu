// Random rows made on the card: host generators would take minutes for half a million tokens.

#include <cuda_bf16.h>

#include "core/philox.h"
#include "kernels/cuda/launch.cuh"

namespace pith::cuda {
namespace {

__global__ void __launch_bounds__(256) normals_kernel(__nv_bfloat16* out, size_t n, uint64_t seed) {
  const Philox random(seed, 0, 0);
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; 2 * i < n;
       i += size_t{gridDim.x} * blockDim.x) {
    const PhiloxWords w = random.words(i, 1);
    const float radius = sqrtf(-2 * logf((static_cast<float>(w[0]) + 1) * 0x1p-32f));
    float sine, cosine;
    sincospif(static_cast<float>(w[1]) * 0x1p-31f, &sine, &cosine);
    out[2 * i] = __float2bfloat16(radius * cosine);
    if (2 * i + 1 < n) out[2 * i + 1] = __float2bfloat16(radius * sine);
  }
}

}  // namespace

void fill_normals(void* out, size_t n, uint64_t seed, cudaStream_t stream) {
  launch_kernel(normals_kernel, {2048, 256}, stream, "?", static_cast<__nv_bfloat16*>(out), n,
                seed);
}

}  // namespace pith::cuda
