#include "kernels/cuda/turn.h"

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {
namespace {

/// A block per row, a thread per pair of channels.
template <class T>
__global__ void turn_kernel(const __grid_constant__ TurnRowsCall call) {
  const int64_t steps = call.steps_at ? *call.steps_at : call.steps;
  const int pair = threadIdx.x, half = call.dim / 2;
  const T* from = static_cast<const T*>(call.from) + static_cast<size_t>(blockIdx.x) * call.dim;
  T* to = static_cast<T*>(call.to) + static_cast<size_t>(blockIdx.x) * call.dim;
  double sin, cos;
  sincos(static_cast<double>(steps) * call.frequencies[pair], &sin, &cos);
  const float c = static_cast<float>(cos), s = static_cast<float>(sin);
  const float a = to_float(from[pair]), b = to_float(from[pair + half]);
  to[pair] = from_float<T>(a * c - b * s);
  to[pair + half] = from_float<T>(b * c + a * s);
}

}  // namespace

void turn_rows(const TurnRowsCall& call, cudaStream_t stream) {
  if (call.rows == 0) return;
  with_type(call.dtype, [&](auto zero) {
    launch_kernel(turn_kernel<decltype(zero)>, {call.rows, call.dim / 2}, stream,
                  "keys of the sink", call);
  });
}

}  // namespace pith::cuda
