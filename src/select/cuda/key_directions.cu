#include "select/cuda/key_directions.h"

#include "kernels/cuda/launch.cuh"
#include "select/cuda/directions.cuh"

namespace pith::cuda {
namespace {

/// Block (part, head): the sum of a part's directions.
template <class T, int D>
__global__ void __launch_bounds__(kShareThreads)
    directions_kernel(const __grid_constant__ CandidateRows rows, float* sums) {
  __shared__ PartRoom<T, D> room;
  const int part = blockIdx.x, head = blockIdx.y;
  const RowList all{rows.count(head), [](int i) { return i; }};
  const float sum = sum_directions<T, D>(rows, head, all, part, room);
  if (threadIdx.x < D) sums[(head * kSelectSums + part) * D + threadIdx.x] = sum;
}

template <class T, int D>
__global__ void __launch_bounds__(kShareThreads)
    cosines_kernel(const __grid_constant__ CandidateRows rows, const float* sums, uint32_t* keys,
                   size_t stride) {
  using Share = RowShare<T, D>;
  __shared__ float anchor[D];
  const int row = blockIdx.x * Share::kRows + threadIdx.x / Share::kLanes, head = blockIdx.y;
  const int count = rows.count(head);
  if (blockIdx.x * Share::kRows >= count) return;
  if (threadIdx.x < D) {
    float sum = 0;
    for (int p = 0; p < kSelectSums; ++p) sum += sums[(head * kSelectSums + p) * D + threadIdx.x];
    anchor[threadIdx.x] = sum;
  }
  __syncthreads();
  const Share share(rows, head, min(row, count - 1));
  const uint32_t key = unlikeness<T, D>(share, anchor);
  if (Share::lane() == 0 && row < count) keys[rows.beside(head, stride) + row] = key;
}

}  // namespace

void score_directions(const SelectSpace& space, const CandidateRows& rows, cudaStream_t stream) {
  with_shares(rows, [&]<class T, int D>() {
    launch_kernel(directions_kernel<T, D>, {dim3(kSelectSums, rows.heads), kShareThreads}, stream,
                  "scores of rows", rows, space.sums);
    launch_kernel(cosines_kernel<T, D>, {grid_of(rows, RowShare<T, D>::kRows), kShareThreads},
                  stream, "scores of rows", rows, space.sums, space.keys, space.stride);
  });
}

}  // namespace pith::cuda
