// CSR's dictionaries on the GPU: atoms drawn from rows, and their Gram matrices. Once a layer.

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/turn.cuh"
#include "methods/codecs/csr/csr_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kWarps = 16;

__global__ void __launch_bounds__(128)
    gram_kernel(float* gram, const __half* atoms, int count, int dim) {
  __shared__ float row[128];
  const __half* mine = atoms + static_cast<size_t>(blockIdx.y) * count * dim;
  for (int c = threadIdx.x; c < dim; c += blockDim.x) {
    row[c] = __half2float(mine[static_cast<size_t>(blockIdx.x) * dim + c]);
  }
  __syncthreads();
  float* out = gram + (static_cast<size_t>(blockIdx.y) * count + blockIdx.x) * count;
  for (int n = threadIdx.x; n < count; n += blockDim.x) {
    float sum = 0;
    for (int c = 0; c < dim; ++c) {
      sum = fmaf(row[c], __half2float(mine[static_cast<size_t>(n) * dim + c]), sum);
    }
    out[n] = sum;
  }
}

/// A warp an atom.
template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    draw_kernel(__half* atoms, const __grid_constant__ CsrDraw p) {
  const int lane = threadIdx.x % kWarp, n = blockIdx.x * kWarps + threadIdx.x / kWarp;
  if (n >= p.count) return;
  const int d = p.dim / p.chunks;
  const uint32_t part = p.parts[blockIdx.y * p.count + n];
  const int row = static_cast<int>(part / p.chunks), first = static_cast<int>(part % p.chunks) * d;
  const T* from =
      static_cast<const T*>(p.rows) + blockIdx.y * p.head_stride + static_cast<size_t>(row) * p.dim;
  const auto number = [&](int c) {
    return turned_back(from, first + c, p.dim, p.turns,
                       p.positions.of(static_cast<int>(blockIdx.y), row));
  };
  float sum = 0;
  for (int c = lane; c < d; c += kWarp) sum += number(c) * number(c);
#pragma unroll
  for (int w = 16; w > 0; w /= 2) sum += __shfl_xor_sync(~0u, sum, w);
  const float norm = sqrtf(sum);
  __half* to = atoms + (static_cast<size_t>(blockIdx.y) * p.all + p.first + n) * d;
  for (int c = lane; c < d; c += kWarp) to[c] = __float2half_rn(norm > 0 ? number(c) / norm : 0);
}

}  // namespace

void make_csr_gram(float* gram, const void* atoms, int heads, int count, int dim,
                   cudaStream_t stream) {
  launch_kernel(gram_kernel, {dim3(count, heads), 128}, stream, "CSR's Gram matrix", gram,
                static_cast<const __half*>(atoms), count, dim);
}

void draw_csr_atoms(void* atoms, const CsrDraw& draw, cudaStream_t stream) {
  const dim3 grid((draw.count + kWarps - 1) / kWarps, draw.heads);
  auto* to = static_cast<__half*>(atoms);
  draw.dtype == DType::kBF16
      ? launch_kernel(draw_kernel<__nv_bfloat16>, {grid, kWarps * kWarp}, stream, "CSR's atoms", to,
                      draw)
      : launch_kernel(draw_kernel<__half>, {grid, kWarps * kWarp}, stream, "CSR's atoms", to, draw);
}

}  // namespace pith::cuda
