#pragma once
// A run of a call: where its rows are and where its survivors go.

#include "select/cuda/halving_block.cuh"

namespace pith::cuda {

/// Where a run's survivors go.
struct RunOutput {
  int32_t* kept;      // [kept_size] numbers of rows, ascending
  int32_t* count;     // null, or how many
  int32_t* failures;  // null, or the walk's
};

/// One of each pair.
__device__ inline void keep_pairs(const RunOutput& out, const RunRows& rows, const float* signs,
                                  bool flip, int thread, int threads) {
  for (int b = thread; b < rows.count / 2; b += threads) {
    const bool swapped = signs[2 * b] < 0;
    out.kept[b] = rows.number(2 * b + (swapped != flip));
  }
  if (out.count && thread == 0) *out.count = rows.count / 2;
}

/// Run (head, group) of a call.
__device__ inline RunRows rows_of(const HalvingCall& call, size_t head, size_t group) {
  return {static_cast<const char*>(call.k) + head * call.head_stride * 2,
          static_cast<const char*>(call.v) + head * call.head_stride * 2,
          call.row_stride * 2,
          call.rows ? call.rows + head * call.rows_stride + group * call.size : nullptr,
          call.row_positions ? call.row_positions + head * call.positions_stride + group * call.size
                             : nullptr,
          call.first_position,
          call.size,
          call.positions ? call.positions + head * call.positions_stride : nullptr,
          static_cast<int>(group * call.size)};
}
__device__ inline HalvingRandom random_of(const HalvingCall& call, size_t head) {
  return {Philox(call.seed, call.layer, call.first_head + static_cast<uint32_t>(head)), call.tag};
}
__device__ inline RunOutput output_of(const HalvingCall& call, size_t head, size_t group,
                                      int kept_size) {
  const size_t run = head * call.groups + group;
  return {call.kept + head * call.kept_stride + group * kept_size,
          call.counts ? call.counts + run : nullptr, call.failures ? call.failures + run : nullptr};
}

}  // namespace pith::cuda
