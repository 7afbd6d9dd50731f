#pragma once
// Prefill with Express on the GPU: the coreset as it stood before every chunk of queries, then
// chunked attention over all of them. The halvings of a level are one launch for all runs and
// heads; those that the next tokens need run beside the attention of the ones before.

#include "methods/express/prefill_plan.h"

namespace pith::cuda {

/// Queries, keys and values of all tokens; row numbers are token numbers.
struct ExpressPrefillRows {
  int query_heads = 0;  // H
  float scale = 0;      ///< of q.k; 0 = 1/sqrt(D)
  StridedHeads q, k, v;
  void* out = nullptr;  // strides of q
};

class ExpressPrefill {
 public:
  /// `site.first_position` is the position of token 0.
  ExpressPrefill(MemoryCounter& counter, const ExpressRule& rule, const ExpressSite& site,
                 const ExpressPrefillShape& shape, cudaStream_t stream);
  ~ExpressPrefill();
  ExpressPrefill(const ExpressPrefill&) = delete;
  ExpressPrefill& operator=(const ExpressPrefill&) = delete;

  /// Attention of all tokens. Ordered by `stream`; a stream of its own joins before the end.
  void run(const ExpressPrefillRows& rows, cudaStream_t stream);
  /// After run: the stream as it stands before the last `window` tokens goes into `device`, made
  /// with the same rule and with first_position + sink.
  void store(ExpressDevice& device, const ExpressPrefillRows& rows, cudaStream_t stream) const;
  const ExpressPlan& plan() const { return plan_; }
  const int32_t* pool() const { return pool_.data(); }

 private:
  HalvingCall halving_call(const HalvingStep& step) const;
  void build(const ExpressPhase& phase, const ExpressPrefillRows& rows);

  ExpressRule rule_;
  ExpressSite site_;
  ExpressPlan plan_;
  DeviceArray<int32_t> pool_;             // [heads, plan.pool]
  DeviceArray<PickJob> partial_;          // [partial]
  DeviceArray<PrefillChunk> chunks_;      // [chunks]
  DeviceArray<PrefillSegment> segments_;  // [segments]
  DeviceArray<float> scratch_;            // of long halvings
  cudaStream_t side_ = nullptr;
  std::vector<cudaEvent_t> ready_;  // [phases + 1] the last: the caller's stream has come to run()
};

/// The seeds of picks.
struct PickSource {
  uint64_t seed = 0;
  uint32_t layer = 0, first_head = 0;
  int64_t first_position = 0;
};
/// A job, or one row of each of `count` jobs, for all heads of the pool.
void pick_rows(const PickJob& job, const PickSource& source, int32_t* pool, int pool_stride,
               int heads, cudaStream_t stream);
void pick_partial_rows(const PickJob* jobs, int count, const PickSource& source, int32_t* pool,
                       int pool_stride, int heads, cudaStream_t stream);

/// Rows of segments go into a device stream's store.
struct StoreJob {
  StridedHeads k, v;
  const PrefillSegment* segments = nullptr;  // [count]
  int count = 0;
  const int32_t* pool = nullptr;
  int pool_stride = 0;
  int64_t first_position = 0;  ///< of token 0
};
void store_rows(const StoreJob& job, const ExpressSite& site, const ExpressArrays& to,
                cudaStream_t stream);

}  // namespace pith::cuda
