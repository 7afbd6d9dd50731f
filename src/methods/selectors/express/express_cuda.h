#pragma once
// Express on the GPU (see express.h): the streams of all KV heads of a layer.
//
// A stream's rows, weights and positions are on the device. The host has the number of rows in each
// part, and passes it with each launch. Taking rows is one launch, one block per head, which finds
// its halvings as it goes, by the host's own functions (plan/coreset.h); of many rows of few heads
// a launch or more for each halving. Cost as on the CPU: O(s^2 D log^2 n) in all.

#include <cuda_runtime_api.h>

#include "core/archive.h"
#include "methods/selectors/express/express.h"
#include "rows/cuda/dense_store.h"
#include "select/cuda/halving.h"

namespace pith::cuda {

/// ExpressRule as the kernels see it.
struct DeviceExpressRule {
  ExpressShape shape;
  float weight_exponent = 1;
  DeviceHalvingRule halving;
};
DeviceExpressRule device_rule(const ExpressRule& rule);

/// The parameters of a stream.
struct ExpressSite {
  DType dtype = DType::kBF16;  ///< of rows: kF16 or kBF16
  int dim = 0;                 ///< D: 64 or 128
  int heads = 0;               ///< KV heads, of all sequences
  int64_t first_position = 0;  ///< of the stream's first row
  uint64_t seed = 0;
  uint32_t layer = 0, first_head = 0;
  bool coded = false;  ///< rows are codes somewhere else, and lie here while others are taken

  /// Throws kInvalidArgument for shapes and dtypes that the kernels do not know.
  void check(const ExpressRule& rule) const;
};

/// New rows of all heads: row i of head h is at h * head_stride + i * row_stride, in numbers.
struct NewDeviceRows {
  const void* k = nullptr;
  const void* v = nullptr;
  size_t head_stride = 0;
  size_t row_stride = 0;
  int count = 0;
  int32_t positions_stride = 0;        ///< 0: the same for all heads
  const int32_t* positions = nullptr;  // [heads, positions_stride], or null: from `position` on
  int64_t position = -1;               ///< of the first; -1: it follows the stream's last
};

/// Where a stream's arrays lie, for the kernels.
struct ExpressArrays {
  void* k = nullptr;             // [heads, capacity, D]
  void* v = nullptr;             // [heads, capacity, D]
  float* log_weights = nullptr;  // [heads, capacity]
  int64_t* positions = nullptr;  // [heads, capacity]
  /// Where each row was before rows were taken: among those held, new ones behind them; or null.
  int32_t* sources = nullptr;  // [heads, capacity]
  int capacity = 0;
};

/// Rows for one of several streams that take together.
struct ExpressJob {
  ExpressArrays arrays;
  NewDeviceRows rows;
  DeviceExpressRule rule;
  ExpressSite site;
  ExpressState state;  ///< before them
};
inline constexpr int kMostExpressJobs = 32;  // what a launch's parameters have room for
struct ExpressJobs {
  ExpressJob job[kMostExpressJobs];
  int count = 0;
};

class ExpressDevice {
 public:
  ExpressDevice(MemoryCounter& counter, const ExpressRule& rule, const ExpressSite& site,
                cudaStream_t stream);
  /// Rows to be taken, in stream order: from now on they have been.
  ExpressJob job(const NewDeviceRows& rows);
  /// One launch, where rows are not coded.
  void take(const NewDeviceRows& rows, cudaStream_t stream);
  const ExpressState& state() const { return state_; }
  /// The rows held of one head, for attention, where they are not coded.
  DeviceSpan span(size_t head) const;
  ExpressArrays arrays() const;
  size_t allocated_bytes() const;
  /// `tokens` came in all.
  void archive(Archive& a, size_t tokens, cudaStream_t stream);

 private:
  DeviceExpressRule rule_;
  ExpressSite site_;
  DenseStore rows_;   // [2, heads, capacity, D], unless rows are coded
  Slab log_weights_;  // [heads, capacity] of float
  Slab positions_;    // [heads, capacity] of int64_t
  ExpressState state_;
};

/// One launch for all jobs, whose rows are of one type and dimension.
void express_take(const ExpressJobs& jobs, cudaStream_t stream);

/// A job by all blocks of the device, halving by halving, with the same result bit for bit: for
/// many rows of few heads, which one block per head would leave most of the device without work.
void express_take_wide(const ExpressJob& job, MemoryCounter& memory, cudaStream_t stream);
/// Whether that is the quicker way for all of them.
bool express_takes_wide(const ExpressJobs& jobs);

}  // namespace pith::cuda
