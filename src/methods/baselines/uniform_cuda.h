#pragma once
// The uniform samples' kernels: keys of rows for uniform(budget=...), and the draw of each row for
// uniform(rate=...).

#include "attend/cuda/device_selector.h"

namespace pith::cuda {

/// Keys that fall with each row's random word: the rows with the smallest words stay. Words are
/// compared by their upper 32 bits.
struct WordSource {
  uint64_t seed = 0;
  uint32_t layer = 0, first_head = 0;
};
void score_words(const SelectSpace& space, const JudgedRows& rows, const WordSource& source,
                 cudaStream_t stream);

/// A sample by rate of one layer: heads differ in their number of rows.
struct RateSample {
  void *k = nullptr, *v = nullptr;  // [G, capacity, D] of 16 bits
  int32_t* positions = nullptr;     // [G, capacity]
  int32_t* counts = nullptr;        // [G] rows held
  int capacity = 0;
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
/// One launch. Cost: a Philox block a row, and the rows that stay once.
void take_by_rate(const RateDraw& draw, const RateJobs& jobs, cudaStream_t stream);

/// The body of uniform(rate=...).
std::shared_ptr<const BodyMaker> make_rate_body(const SelectorPlace& place);

}  // namespace pith::cuda
