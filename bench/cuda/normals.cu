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

/// Two normal numbers of (row, pair).
__device__ float2 normal_pair(const Philox& random, uint64_t row, uint32_t pair) {
  const PhiloxWords w = random.words(row, pair);
  const float radius = sqrtf(-2 * logf((static_cast<float>(w[0]) + 1) * 0x1p-32f));
  float sine, cosine;
  sincospif(static_cast<float>(w[1]) * 0x1p-31f, &sine, &cosine);
  return {radius * cosine, radius * sine};
}

/// Row t is the centre of its cluster, of 64, and noise of a quarter of its energy.
__global__ void __launch_bounds__(256)
    clusters_kernel(__nv_bfloat162* out, size_t rows, int width, uint64_t seed) {
  const Philox random(seed, 0, 0);
  const Philox clusters(7, 1, 0);  // the same for keys and values
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < rows * width / 2;
       i += size_t{gridDim.x} * blockDim.x) {
    const size_t t = i / (width / 2);
    const auto pair = static_cast<uint32_t>(i % (width / 2));
    const uint64_t cluster = clusters.words(t, 0)[0] % 64;
    const float2 c = normal_pair(random, (uint64_t{1} << 40) + cluster, pair);
    const float2 x = normal_pair(random, t, pair);
    out[i] = __floats2bfloat162_rn(0.866f * c.x + 0.5f * x.x, 0.866f * c.y + 0.5f * x.y);
  }
}

}  // namespace

void fill_clusters(void* out, size_t rows, int width, uint64_t seed, cudaStream_t stream) {
  launch_kernel(clusters_kernel, {2048, 256}, stream, "?", static_cast<__nv_bfloat162*>(out), rows,
                width, seed);
}

void fill_normals(void* out, size_t n, uint64_t seed, cudaStream_t stream) {
  launch_kernel(normals_kernel, {2048, 256}, stream, "?", static_cast<__nv_bfloat16*>(out), n,
                seed);
}

}  // namespace pith::cuda
