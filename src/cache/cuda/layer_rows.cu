#include "attend/cuda/decode_groups.h"
#include "cache/cuda/layer_rows.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"

namespace pith::cuda {
namespace {

struct TokenRowsParams : PlacedParams {
  int heads, dim;
};

/// A block per head, side and call; 16 bytes per thread.
__global__ void copy_kernel(const __grid_constant__ TokenRowsParams p) {
  let_successor_start();
  const DecodePlace& place = p.places ? p.places[blockIdx.z] : p.place;
  const RowTarget to = static_cast<const RowTarget*>(place.note)[blockIdx.x];
  const int pieces = p.dim / 8, from = blockIdx.y * p.heads + blockIdx.x;
  auto* target = static_cast<uint4*>(blockIdx.y == 0 ? to.k : to.v) + to.row * pieces;
  wait_for_predecessor();
  target[threadIdx.x] = static_cast<const uint4*>(place.q)[from * pieces + threadIdx.x];
}

}  // namespace

void copy_token_rows(const TokenRowsCall& call, cudaStream_t stream) {
  constexpr const char* kWhat = "a token's rows of single heads";
  TokenRowsParams params{};
  params.place = call.place;
  params.heads = call.heads;
  params.dim = call.dim;
  const LaunchShape shape{dim3(call.heads, 2), dim3(call.dim / 8)};
  if (!call.batch.groups) return launch_early(copy_kernel, shape, params, stream, kWhat);
  call.batch.groups->add({late_kernel(copy_kernel), kWhat, shape, call.batch.place, &dim3::z},
                         params);
}

}  // namespace pith::cuda
