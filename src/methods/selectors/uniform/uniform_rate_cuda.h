#pragma once
// Kernels of uniform(rate=...): which rows of a layer stay, and groups of them that go into codes.

#include "attend/cuda/code_rows.h"
#include "kernels/cuda/layer.h"

namespace pith::cuda {

/// A sample of one layer: heads differ in their number of rows.
struct RateSample {
  void *k = nullptr, *v = nullptr;  // [G, capacity, D] of 16 bits
  int capacity = 0;
  int positions_stride = 0;
  int32_t* positions = nullptr;    // [G, positions_stride]
  int32_t* counts = nullptr;       // [G] rows held
  const int32_t* coded = nullptr;  // [G] the first of them, which are not in k and v; null: none
};
/// Rows that come to it: row i of head h is at h * head_stride + i * D.
struct RateJob {
  RateSample sample;
  const void *k = nullptr, *v = nullptr;
  size_t head_stride = 0;  ///< numbers
  int rows = 0;
  int32_t positions_stride = 0;        ///< 0: the same for all heads
  const int32_t* positions = nullptr;  // [G, positions_stride], or null: from `position` on
  int64_t position = 0;
  uint32_t layer = 0, first_head = 0;
};
inline constexpr int kMostRateJobs = 32;
struct RateJobs {
  RateJob job[kMostRateJobs];
  int count = 0;
};
struct RateDraw {
  double rate = 1;
  uint64_t seed = 0;
  int heads = 0, dim = 0;
};
/// One launch. Cost: a Philox block per row, and the rows that stay once.
void take_by_rate(const RateDraw& draw, const RateJobs& jobs, cudaStream_t stream);

/// Rows behind the coded ones, of which whole groups have been coded apart, whatever was left of
/// the last one: each head's own groups go behind its codes, and the rows left over to the tail.
struct GroupJob {
  const int32_t* counts = nullptr;               // [G] rows held
  int32_t *coded = nullptr, *waiting = nullptr;  // [G] of them, before and after
  RowTarget rows;                                ///< from row 0 on
  RowTarget tail;                                ///< may be `rows`
  CodeBlocks from, to;
};
inline constexpr int kMostGroupJobs = 16;
struct GroupJobs {
  GroupJob job[kMostGroupJobs];
  int count = 0;
};
struct GroupShape {
  int heads = 0, dim = 0;
  int group = 0;       ///< rows
  GroupedBytes bytes;  ///< of 32 rows, multiples of 16
};
/// One launch. Cost: the groups' codes read and written once.
void take_groups(const GroupShape& shape, const GroupJobs& jobs, cudaStream_t stream);

}  // namespace pith::cuda
