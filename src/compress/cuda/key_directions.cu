#include "compress/cuda/key_directions.h"

#include "compress/cuda/row_share.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/order_key.cuh"

namespace pith::cuda {
namespace {

/// Block (part, head): the sum of a part's directions.
template <class T, int D>
__global__ void __launch_bounds__(kShareThreads)
    directions_kernel(const __grid_constant__ JudgedRows rows, float* sums) {
  using Share = RowShare<T, D>;
  __shared__ float parts[Share::kRows][D];
  const int part = blockIdx.x, head = blockIdx.y, own = threadIdx.x / Share::kLanes;
  const int count = rows.count(head), length = (count + kSelectSums - 1) / kSelectSums;
  const int end = min(count, (part + 1) * length);
  float total[8] = {};
  for (int first = part * length; first < end; first += Share::kRows) {
    const int row = first + own;
    const Share share(rows, head, min(row, end - 1));
    const float norm = fmaxf(sqrtf(share.square()), 1e-12f);
#pragma unroll
    for (int i = 0; i < 8; ++i) total[i] += row < end ? share.x[i] / norm : 0;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) parts[own][Share::lane() * 8 + i] = total[i];
  __syncthreads();
  if (threadIdx.x >= D) return;
  float sum = 0;
  for (int i = 0; i < Share::kRows; ++i) sum += parts[i][threadIdx.x];
  sums[(head * kSelectSums + part) * D + threadIdx.x] = sum;
}

template <class T, int D>
__global__ void __launch_bounds__(kShareThreads)
    cosines_kernel(const __grid_constant__ JudgedRows rows, const float* sums, uint32_t* keys,
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
  float dot = 0, square = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float mean = anchor[Share::lane() * 8 + i];
    dot += share.x[i] * mean;
    square += mean * mean;
  }
  // The mean's length does not change a head's order, but heads may share their rows (adakv).
  const float length = fmaxf(sqrtf(Share::sum(square)), 1e-12f);
  const float score = -Share::sum(dot) / (fmaxf(sqrtf(share.square()), 1e-12f) * length);
  if (Share::lane() == 0 && row < count) keys[rows.beside(head, stride) + row] = key_of(score);
}

}  // namespace

void score_directions(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) {
  with_shares(rows, [&]<class T, int D>() {
    launch_kernel(directions_kernel<T, D>, {dim3(kSelectSums, rows.heads), kShareThreads}, stream,
                  "scores of rows", rows, space.sums);
    launch_kernel(cosines_kernel<T, D>, {grid_of(rows, RowShare<T, D>::kRows), kShareThreads},
                  stream, "scores of rows", rows, space.sums, space.keys, space.stride);
  });
}

}  // namespace pith::cuda
