#pragma once
// How unlike the others keys are (select/key_directions.h), by the threads of a block. Sums go in
// one order wherever they are made, so that the same rows get the same keys.

#include "kernels/cuda/order_key.cuh"
#include "select/cuda/row_share.cuh"

namespace pith::cuda {

/// Numbers that kShareThreads threads need for a part's sum.
template <class T, int D>
using PartRoom = float[RowShare<T, D>::kRows][D];

/// Some of a head's rows in an order of their own: the i-th of `count` is row_of(i).
template <class RowOf>
struct RowList {
  int count;
  RowOf row_of;
};

/// The sum of the directions of one of kSelectSums parts of the list: number threadIdx.x %
/// kShareThreads of it, of threads below D. Every kShareThreads threads of a block have a part and
/// room of their own; all threads call it.
template <class T, int D, class RowOf>
__device__ float sum_directions(const CandidateRows& rows, int head, const RowList<RowOf>& list,
                                int part, PartRoom<T, D>& room) {
  using Share = RowShare<T, D>;
  constexpr int kTogether = 3;  // rows on their way to a thread
  const int thread = threadIdx.x % kShareThreads, own = thread / Share::kLanes;
  const int length = (list.count + kSelectSums - 1) / kSelectSums;
  const int end = min(list.count, (part + 1) * length);
  float total[8] = {};
  for (int first = part * length; first < end; first += kTogether * Share::kRows) {
    const auto share = [&](int j) {
      return Share(rows, head, list.row_of(min(first + j * Share::kRows + own, end - 1)));
    };
    const Share shares[kTogether] = {share(0), share(1), share(2)};
#pragma unroll
    for (int j = 0; j < kTogether; ++j) {
      const float norm = fmaxf(sqrtf(shares[j].square()), 1e-12f);
      const bool there = first + j * Share::kRows + own < end;
#pragma unroll
      for (int i = 0; i < 8; ++i) total[i] += there ? shares[j].x[i] / norm : 0;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) room[own][Share::lane() * 8 + i] = total[i];
  __syncthreads();
  float sum = 0;
  if (thread < D) {
    for (int i = 0; i < Share::kRows; ++i) sum += room[i][thread];
  }
  return sum;
}

/// The key of a row whose share this is; `sum` [D] of all parts.
template <class T, int D>
__device__ uint32_t unlikeness(const RowShare<T, D>& share, const float* sum) {
  using Share = RowShare<T, D>;
  float dot = 0, square = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float mean = sum[Share::lane() * 8 + i];
    dot += share.x[i] * mean;
    square += mean * mean;
  }
  // The mean's length does not change a head's order, but heads may share their rows (adakv).
  const float length = fmaxf(sqrtf(Share::sum(square)), 1e-12f);
  return key_of(-Share::sum(dot) / (fmaxf(sqrtf(share.square()), 1e-12f) * length));
}

}  // namespace pith::cuda
