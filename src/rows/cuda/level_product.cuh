#pragma once
// A matrix in shared memory as a product of rank r, nearly: subspace iteration, as the CPU does it
// (methods/gear/low_rank). One thread block; sums in f64.

#include "core/philox.h"
#include "rows/cuda/level_lane.cuh"

namespace pith::cuda {

template <int D>
struct LevelProduct {
  static constexpr int kRounds = 6;
  char* shared;
  int n, rank;

  static size_t bytes(int n, int rank) { return sizeof(double) * (n + D) * rank; }
  __device__ double* left() const { return reinterpret_cast<double*>(shared); }  // [n, r]
  __device__ double* right() const { return left() + n * rank; }                 // [D, r]

  // Numbers of the factors as they are stored.
  __device__ __half left_at(int row, int j) const {
    return __float2half_rn(static_cast<float>(left()[row * rank + j]));
  }
  __device__ __half right_at(int j, int channel) const {
    return __float2half_rn(static_cast<float>(right()[channel * rank + j]));
  }

  /// Columns of q [count, r] made orthonormal, twice over; a column that vanishes stays 0. All
  /// threads call it; the first warp works.
  __device__ void orthonormalise(double* q, int count) const {
    const int lane = threadIdx.x;
    __syncthreads();
    if (lane < kWarp) {
      const auto dot = [&](int a, int b) {
        double sum = 0;
        for (int i = lane; i < count; i += kWarp) sum += q[i * rank + a] * q[i * rank + b];
#pragma unroll
        for (int d = kWarp / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
        return sum;
      };
      for (int j = 0; j < rank; ++j) {
        const double before = sqrt(dot(j, j));
        for (int pass = 0; pass < 2; ++pass) {
          for (int k = 0; k < j; ++k) {
            const double along = dot(j, k);
            for (int i = lane; i < count; i += kWarp) q[i * rank + j] -= along * q[i * rank + k];
            __syncwarp();
          }
        }
        const double norm = sqrt(dot(j, j));
        const double inverse = norm > 1e-12 * before && norm > 0 ? 1 / norm : 0;
        for (int i = lane; i < count; i += kWarp) q[i * rank + j] *= inverse;
        __syncwarp();
      }
    }
    __syncthreads();
  }

  /// x [n, D] ~ left right^T.
  __device__ void find(const float* x, const Philox& random) const {
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    for (int i = threadIdx.x; i < D * rank; i += blockDim.x) {
      right()[i] = 2.0 * random.uniform(i, 0) - 1;
    }
    for (int round = 0; round < kRounds; ++round) {
      orthonormalise(right(), D);
      for (int t = warp; t < n; t += blockDim.x / kWarp) {
        for (int j = 0; j < rank; ++j) {
          double sum = 0;
          for (int c = lane; c < D; c += kWarp) sum += x[t * D + c] * right()[c * rank + j];
#pragma unroll
          for (int d = kWarp / 2; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
          if (lane == 0) left()[t * rank + j] = sum;
        }
      }
      orthonormalise(left(), n);
      for (int i = threadIdx.x; i < D * rank; i += blockDim.x) {
        const int c = i % D, j = i / D;
        double sum = 0;
        for (int t = 0; t < n; ++t) sum += x[t * D + c] * left()[t * rank + j];
        right()[c * rank + j] = sum;
      }
    }
    __syncthreads();
  }
};

}  // namespace pith::cuda
