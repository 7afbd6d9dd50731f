#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/order_key.cuh"
#include "methods/selectors/scores/scores_cuda.h"
#include "select/cuda/row_share.cuh"

namespace pith::cuda {
namespace {

template <class T, int D>
__global__ void __launch_bounds__(kShareThreads)
    norms_kernel(const __grid_constant__ CandidateRows rows, uint32_t* keys, size_t stride) {
  using Share = RowShare<T, D>;
  const int row = blockIdx.x * Share::kRows + threadIdx.x / Share::kLanes, head = blockIdx.y;
  const int count = rows.count(head);
  if (blockIdx.x * Share::kRows >= count) return;
  const float square = Share(rows, head, min(row, count - 1)).square();
  if (Share::lane() == 0 && row < count) keys[rows.beside(head, stride) + row] = key_of(-square);
}

__global__ void __launch_bounds__(kShareThreads)
    mass_kernel(const __grid_constant__ CandidateRows rows, int half, bool all_heads,
                uint32_t* keys, size_t stride) {
  const int row = blockIdx.x * kShareThreads + threadIdx.x, head = blockIdx.y;
  const int count = rows.count(head);
  if (row >= count) return;
  const int first = all_heads ? 0 : head, last = all_heads ? rows.heads - 1 : head;
  double sum = 0;
  for (int h = first; h <= last; ++h) {
    const float* mass = rows.mass + rows.beside(h, rows.side_stride);
    for (int i = max(row - half, 0); i <= min(row + half, count - 1); ++i) sum += mass[i];
  }
  keys[rows.beside(head, stride) + row] = key_of(static_cast<float>(sum));
}

}  // namespace

void score_norms(const SelectSpace& space, const CandidateRows& rows, cudaStream_t stream) {
  with_shares(rows, [&]<class T, int D>() {
    launch_kernel(norms_kernel<T, D>, {grid_of(rows, RowShare<T, D>::kRows), kShareThreads}, stream,
                  "scores of rows", rows, space.keys, space.stride);
  });
}

void score_mass(const SelectSpace& space, const CandidateRows& rows, int kernel, bool all_heads,
                cudaStream_t stream) {
  launch_kernel(mass_kernel, {grid_of(rows, kShareThreads), kShareThreads}, stream,
                "scores of rows", rows, kernel / 2, all_heads, space.keys, space.stride);
}

}  // namespace pith::cuda
