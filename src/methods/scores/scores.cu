#include "kernels/cuda/device.h"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/order_key.cuh"
#include "methods/scores/scores_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

/// Eight numbers of a row, one lane's share; D / 8 lanes have a row.
template <class T, int D>
struct RowShare {
  static constexpr int kLanes = D / 8, kRows = kThreads / kLanes;  // rows of a block at once
  float x[8];

  __device__ RowShare(const JudgedRows& rows, int head, int row) {
    const T* k =
        static_cast<const T*>(rows.k) + head * rows.head_stride + static_cast<size_t>(row) * D;
    const uint4 raw = *(reinterpret_cast<const uint4*>(k) + lane());
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = to_float(reinterpret_cast<const T*>(&raw)[i]);
  }
  static __device__ int lane() { return threadIdx.x % kLanes; }
  static __device__ float sum(float y) {
#pragma unroll
    for (int d = kLanes / 2; d > 0; d /= 2) y += __shfl_xor_sync(~0u, y, d);
    return y;
  }
  __device__ float square() const {
    float y = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) y += x[i] * x[i];
    return sum(y);
  }
};

template <class T, int D>
__global__ void __launch_bounds__(kThreads)
    norms_kernel(const __grid_constant__ JudgedRows rows, uint32_t* keys, size_t stride) {
  using Share = RowShare<T, D>;
  const int row = blockIdx.x * Share::kRows + threadIdx.x / Share::kLanes, head = blockIdx.y;
  const float square = Share(rows, head, min(row, rows.rows - 1)).square();
  if (Share::lane() == 0 && row < rows.rows) keys[head * stride + row] = key_of(-square);
}

/// Block (part, head): the sum of a part's directions.
template <class T, int D>
__global__ void __launch_bounds__(kThreads)
    directions_kernel(const __grid_constant__ JudgedRows rows, float* sums) {
  using Share = RowShare<T, D>;
  __shared__ float parts[Share::kRows][D];
  const int part = blockIdx.x, head = blockIdx.y, own = threadIdx.x / Share::kLanes;
  const int length = (rows.rows + kSelectSums - 1) / kSelectSums;
  const int end = min(rows.rows, (part + 1) * length);
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
__global__ void __launch_bounds__(kThreads)
    cosines_kernel(const __grid_constant__ JudgedRows rows, const float* sums, uint32_t* keys,
                   size_t stride) {
  using Share = RowShare<T, D>;
  __shared__ float anchor[D];
  const int row = blockIdx.x * Share::kRows + threadIdx.x / Share::kLanes, head = blockIdx.y;
  if (threadIdx.x < D) {
    float sum = 0;
    for (int p = 0; p < kSelectSums; ++p) sum += sums[(head * kSelectSums + p) * D + threadIdx.x];
    anchor[threadIdx.x] = sum;
  }
  __syncthreads();
  const Share share(rows, head, min(row, rows.rows - 1));
  float dot = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) dot += share.x[i] * anchor[Share::lane() * 8 + i];
  const float score = -Share::sum(dot) / fmaxf(sqrtf(share.square()), 1e-12f);
  if (Share::lane() == 0 && row < rows.rows) keys[head * stride + row] = key_of(score);
}

__global__ void __launch_bounds__(kThreads)
    mass_kernel(const __grid_constant__ JudgedRows rows, int half, bool all_heads, uint32_t* keys,
                size_t stride) {
  const int row = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y;
  if (row >= rows.rows) return;
  const int first = all_heads ? 0 : head, last = all_heads ? rows.heads - 1 : head;
  double sum = 0;
  for (int h = first; h <= last; ++h) {
    const float* mass = rows.mass + h * rows.side_stride;
    for (int i = max(row - half, 0); i <= min(row + half, rows.rows - 1); ++i) sum += mass[i];
  }
  keys[head * stride + row] = key_of(static_cast<float>(sum));
}

/// Calls f.template operator()<T, D>() for the rows' type and width.
template <class F>
void with_rows(const JudgedRows& rows, const F& f) {
  with_rows_of<256>(rows.dtype, rows.dim, f);
  check(cudaGetLastError(), "scores of rows");
}

dim3 grid_of(const JudgedRows& rows, int rows_of_block) {
  return dim3((rows.rows + rows_of_block - 1) / rows_of_block, rows.heads);
}

}  // namespace

void score_norms(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) {
  with_rows(rows, [&]<class T, int D>() {
    norms_kernel<T, D><<<grid_of(rows, RowShare<T, D>::kRows), kThreads, 0, stream>>>(
        rows, space.keys, space.stride);
  });
}

void score_directions(const SelectSpace& space, const JudgedRows& rows, cudaStream_t stream) {
  with_rows(rows, [&]<class T, int D>() {
    directions_kernel<T, D>
        <<<dim3(kSelectSums, rows.heads), kThreads, 0, stream>>>(rows, space.sums);
    cosines_kernel<T, D><<<grid_of(rows, RowShare<T, D>::kRows), kThreads, 0, stream>>>(
        rows, space.sums, space.keys, space.stride);
  });
}

void score_mass(const SelectSpace& space, const JudgedRows& rows, int kernel, bool all_heads,
                cudaStream_t stream) {
  mass_kernel<<<grid_of(rows, kThreads), kThreads, 0, stream>>>(rows, kernel / 2, all_heads,
                                                                space.keys, space.stride);
  check(cudaGetLastError(), "scores of rows");
}

}  // namespace pith::cuda
