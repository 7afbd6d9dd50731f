#pragma once
// Express on the GPU (see express.h): the streams of all KV heads of a layer, and the offline form
// for prefill.
//
// A stream lives on the device entirely: rows, weights, positions and how many rows stand where.
// Taking rows is one launch, one block a head, and asks nothing of the host, so that a captured
// graph can replay it. Cost as on the CPU: O(s^2 D log^2 n) in all.

#include <cuda_runtime_api.h>

#include "attend/cuda/decode.h"
#include "compress/cuda/halving.h"
#include "core/archive.h"
#include "methods/express/express.h"

namespace pith::cuda {

/// ExpressState as the kernels see it: one copy a head, all alike.
struct DeviceExpressState {
  uint64_t seen = 0, tau = 1, stratum = 0;
  uint32_t coreset = 0;
  uint32_t levels[kExpressLevels] = {};
};

/// ExpressRule as the kernels see it.
struct DeviceExpressRule {
  uint32_t target = 0, inflation = 1;
  float weight_exponent = 1;
  DeviceHalvingRule halving;
};
DeviceExpressRule device_rule(const ExpressRule& rule);

/// What a stream is made for.
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
  void* k = nullptr;                     // [heads, capacity, D]
  void* v = nullptr;                     // [heads, capacity, D]
  float* log_weights = nullptr;          // [heads, capacity]
  int64_t* positions = nullptr;          // [heads, capacity]
  DeviceExpressState* states = nullptr;  // [heads]
  DeviceSpan* spans = nullptr;           // [heads]
  /// Where each row was before rows were taken: among those held, new ones behind them; or null.
  int32_t* sources = nullptr;  // [heads, capacity]
  int capacity = 0;
};

/// Rows for one of several streams that take together.
struct ExpressJob {
  ExpressArrays arrays;
  NewDeviceRows rows;
  uint32_t layer = 0;
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
  /// Becomes what `from`, a stream of the same rule and site, is.
  void copy(const ExpressDevice& from, cudaStream_t stream);

  /// Takes rows, in stream order, where they are not coded. One launch.
  void take(const NewDeviceRows& rows, cudaStream_t stream);
  /// One span a head over the rows held, for decode attention. Row counts change on the device.
  const DeviceSpan* spans() const { return spans_.data(); }
  const ExpressArrays& arrays() const { return arrays_; }
  size_t allocated_bytes() const;
  /// Of a stream that stands at `state`, which is loaded where none has come; `tokens` came in all.
  void archive(Archive& a, const ExpressState& state, size_t tokens, cudaStream_t stream);

 private:
  DeviceExpressRule rule_;
  ExpressSite site_;
  DeviceArray<char> k_, v_;                 // [heads, capacity, D], unless rows are coded
  DeviceArray<float> log_weights_;          // [heads, capacity]
  DeviceArray<int64_t> positions_;          // [heads, capacity]
  DeviceArray<DeviceExpressState> states_;  // [heads]
  DeviceArray<DeviceSpan> spans_;           // [heads]
  ExpressArrays arrays_;
};

/// One launch for all jobs. Everything of `site` but the layer holds for all.
void express_take(const DeviceExpressRule& rule, const ExpressSite& site, const ExpressJobs& jobs,
                  cudaStream_t stream);

}  // namespace pith::cuda
