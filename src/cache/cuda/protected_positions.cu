#include "cache/cuda/protected_store.h"
#include "kernels/cuda/launch.cuh"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

/// A thread per row; one binary search.
__global__ void __launch_bounds__(kThreads)
    positions_kernel(const __grid_constant__ ProtectedStore::PositionsCall call,
                     const OrdinalRun* runs, int count) {
  const int row = blockIdx.x * kThreads + threadIdx.x;
  if (row >= call.rows) return;
  const int64_t ordinal = call.first + row;
  int low = 0, high = count;  // the last run that begins at or before it is in [low, high)
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (runs[middle].first <= ordinal ? low : high) = middle;
  }
  call.positions[blockIdx.y * call.stride + row] =
      static_cast<int32_t>(runs[low].position + ordinal - runs[low].first);
}

}  // namespace

void ProtectedStore::write_positions(const PositionsCall& call) const {
  if (call.rows == 0) return;
  const dim3 grid((call.rows + kThreads - 1) / kThreads, call.heads);
  launch_kernel(positions_kernel, {grid, kThreads}, stream_, "positions of rows", call,
                runs_->data(), static_cast<int>(runs_->size()));
}

}  // namespace pith::cuda
