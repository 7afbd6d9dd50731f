#pragma once
// Rows that a rule selects, read by a few lanes each: what kernels that look at every key share.

#include "kernels/cuda/device.h"
#include "kernels/cuda/numbers.cuh"
#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

inline constexpr int kShareThreads = 256;

/// Eight numbers of a row, one lane's share; D / 8 lanes have a row.
template <class T, int D>
struct RowShare {
  static constexpr int kLanes = D / 8, kRows = kShareThreads / kLanes;  // rows of a block at once
  float x[8];

  __device__ RowShare(const CandidateRows& rows, int head, int row) {
    const T* k =
        static_cast<const T*>(rows.k) + rows.numbers_at(head) + static_cast<size_t>(row) * D;
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

/// Calls f.template operator()<T, D>() for the rows' type and width.
template <class F>
void with_shares(const CandidateRows& rows, const F& f) {
  with_rows_of<256>(rows.dtype, rows.dim, f);
  check(cudaGetLastError(), "scores of rows");
}

inline dim3 grid_of(const CandidateRows& rows, int rows_of_block) {
  return dim3((rows.rows + rows_of_block - 1) / rows_of_block, rows.heads);
}

}  // namespace pith::cuda
