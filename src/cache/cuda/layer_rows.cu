#include "cache/cuda/layer_rows.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"

namespace pith::cuda {
namespace {

/// A block per head and side; 16 bytes per thread.
__global__ void copy_kernel(const __grid_constant__ TokenRowsCall call) {
  const RowTarget& to = *call.to;
  const int pieces = call.dim / 8, head = blockIdx.x, piece = threadIdx.x;
  const auto* from = static_cast<const uint4*>(blockIdx.y == 0 ? call.k : call.v);
  auto* target = static_cast<uint4*>(blockIdx.y == 0 ? to.k : to.v);
  const size_t row = head * (to.head_stride / 8) + to.row * pieces;
  target[row + piece] = from[head * pieces + piece];
}

}  // namespace

void copy_token_rows(const TokenRowsCall& call, cudaStream_t stream) {
  launch_kernel(copy_kernel, {dim3(call.heads, 2), call.dim / 8}, stream,
                "a token's rows of single heads", call);
}

}  // namespace pith::cuda
