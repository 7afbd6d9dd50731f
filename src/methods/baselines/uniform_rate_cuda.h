#pragma once
// The sample of uniform(rate=...) on the GPU. Whether a row stays is a function of its position
// alone: the host draws as the device does, and so knows each head's number of rows. Which rows a
// heavy store lets go only the device knows: the host then reckons with all of them, makes room for
// so many, and reads the numbers before it needs them next (docs/decisions/0191). A row that stays
// does so for good, dense or in codes (uniform_rate_body_cuda.cc).

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "attend/cuda/code_rows.h"
#include "attend/cuda/device_body.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/slab.h"
#include "plan/protected_rows.h"

namespace pith::cuda {

struct RateRule {
  double rate = 1;
  float log_weight = 0;
  uint64_t seed = 0;
  uint32_t layer = 0, first_head = 0;
  bool evicted = false;  ///< rows come from a heavy store
};

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
/// One launch. Cost: a Philox block a row, and the rows that stay once.
void take_by_rate(const RateDraw& draw, const RateJobs& jobs, cudaStream_t stream);

/// Rows behind the coded ones, of which whole groups have been coded apart, whatever was left of
/// the last one: each head's own groups go behind its codes, and the rows left over to the tail.
struct SettleJob {
  const int32_t* counts = nullptr;               // [G] rows held
  int32_t *coded = nullptr, *waiting = nullptr;  // [G] of them, before and after
  RowTarget rows;                                ///< from row 0 on
  RowTarget tail;                                ///< may be `rows`
  CodeBlocks from, to;
};
inline constexpr int kMostSettleJobs = 16;
struct SettleJobs {
  SettleJob job[kMostSettleJobs];
  int count = 0;
};
struct SettleShape {
  int heads = 0, dim = 0;
  int group = 0;       ///< rows
  GroupedBytes bytes;  ///< of 32 rows, multiples of 16
};
/// One launch. Cost: the groups' codes read and written once.
void settle_groups(const SettleShape& shape, const SettleJobs& jobs, cudaStream_t stream);

/// Which rows of a layer stay, on both sides.
class RateDrawn {
 public:
  RateDrawn(const RateRule& rule, const BodySite& site);

  const RateRule& rule() const { return rule_; }
  /// Draws for the next `rows` rows.
  void announce(size_t rows);
  /// They have been taken, as far as the stream knows.
  void taken() const {
    if (rule_.evicted) counts_.tell(device_counts(), site_.stream);
  }
  void protect(std::span<const TokenRange> ranges);
  /// [G], with what was announced: the most until it is taken, if only the device draws. Waits for
  /// the numbers of the last rows taken then.
  const std::vector<size_t>& counts() const { return counts_.get(); }
  size_t most() const;
  size_t total() const;
  /// What the kernel that takes a move is told; `to` lacks positions and counts.
  RateJob job(const BodyMove& move, RateSample to) const;
  const int32_t* device_counts() const { return on_device_.at<int32_t>(); }
  void add_rows(HeadRows& out, size_t head) const;
  /// Positions and counts.
  void add_to(Ledger& ledger) const;
  void archive(Archive& a, size_t tokens);

 private:
  RateRule rule_;
  BodySite site_;
  Slab positions_;              // [G, capacity]
  Slab on_device_;              // [G] counts as the kernels keep them
  mutable ToldNumbers counts_;  // [G]
  ProtectedRows protected_;     // behind the sink
  int64_t next_ = 0;            // of the next row, numbered without the protected ones
};

/// Rows of all moves in as few launches as it takes; `job_of` says where a move's go.
template <class JobOf>
void take_all(std::span<const BodyMove> moves, const RateDraw& draw, cudaStream_t stream,
              const JobOf& job_of) {
  RateJobs jobs;
  for (size_t i = 0; i < moves.size(); ++i) {
    jobs.job[jobs.count++] = job_of(moves[i]);
    if (jobs.count < kMostRateJobs && i + 1 < moves.size()) continue;
    take_by_rate(draw, jobs, stream);
    jobs.count = 0;
  }
}

}  // namespace pith::cuda
