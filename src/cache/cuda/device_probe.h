#pragma once
// The error probe on the GPU (probe/error_probe.h). The sampled rows of all layers are kept in
// device memory, as the cache's exact rows are stored. At a probed step kernels sum what the cache
// holds, tile by tile, with every row's weight 1: dense rows where the step's spans say they lie,
// coded ones unpacked a piece at a time. Where a sampled row lies in codes, it is taken out of the
// piece. The sums of a layer come to the host, which merges them in f64 and knows by positions what
// is gone; the estimate is the CPU's, made while the device goes on with the next tokens. Other
// steps only copy the few rows that enter the sample.
//
// Cost: docs/error_probe.md. Memory: ErrorProbe's, the rows' on the device.

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/cuda/layer_rows.h"
#include "core/thread_pool.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/slab.h"
#include "probe/cuda/probe_kernels.h"
#include "probe/error_probe.h"

namespace pith::cuda {

/// The arguments of the probe of a cache.
struct DeviceProbeSite {
  CountedBy memory;
  cudaStream_t stream = nullptr;
  CacheShape shape;
  DType dtype = DType::kF16;  ///< of queries and exact rows
  uint64_t seed = 0;
  int first_layer = 0, end_layer = 0;  ///< of the cache's
};

/// One layer's probed step, once its attention is enqueued.
struct DeviceProbeStep {
  const LayerRows& rows;
  const DeviceSpan* spans = nullptr;  // the layer's, on the host, as begin_token wrote them
  const void* q = nullptr;            // [H, D], as the model made it
  const float* out = nullptr;         // [H, D] the policy's answer
  std::function<RowTarget()> piece;   ///< gives room for ChunkSpace::kPieceRows rows
};

class DeviceProbe {
 public:
  /// Layers without a sliding window are probed. `threads` of the host compare; 0 = all.
  DeviceProbe(const DeviceProbeSite& site, const ErrorProbeOptions& options, int threads);
  DeviceProbe(const DeviceProbe& other);
  ~DeviceProbe();

  /// Counts a decode step.
  void begin_token();
  /// Whether it is one to measure: compare() is to be called for each layer.
  bool comparing() const { return comparing_; }
  /// Waits for what the host has left to do of an earlier step, and for positions that a policy
  /// keeps on the device.
  void compare(int layer, const DeviceProbeStep& step);
  /// The step's rows, of each of the cache's layers, or a chunk's, before they move.
  void append_token(std::span<const RowTarget> rows);
  void append_chunk(int layer, const RowTarget& rows, size_t tokens);
  /// Waits for the host.
  std::vector<AttentionError> errors() const;
  /// One layer's, after so many tokens. Waits for the host.
  void archive(int layer, Archive& a, size_t tokens);

 private:
  /// The part of a layer's step that comes to the host. The memory stays for the next.
  struct Found {
    PinnedArray<float> sums;                 // [tiles, group, numbers]
    PinnedArray<float> policy;               // [H, D]
    PinnedArray<uint16_t> q;                 // [H, D]
    PinnedArray<uint16_t> k, v;              // [G, slots, D] the sample
    PinnedArray<uint16_t> coded_k, coded_v;  // [copies, D] f16
  };
  struct Layer {
    Layer(const DeviceProbeSite& site, const ErrorProbeSite& of, const ErrorProbeOptions& options);
    Layer(const Layer& o) : probe(o.probe), k(o.k), v(o.v) {}
    size_t slots() const { return k.capacity(); }  ///< rows of a head that there is room for
    ErrorProbe probe;
    Slab k, v;  // [G, slots, D]
    Found found;
  };
  /// The findings of a step of one layer, on the host.
  struct Held;
  struct Plan;
  struct Comparison;

  size_t dim() const { return static_cast<size_t>(site_.shape.head_dim); }
  size_t kv_heads() const { return static_cast<size_t>(site_.shape.kv_heads); }
  size_t group() const {
    return static_cast<size_t>(site_.shape.query_heads / site_.shape.kv_heads);
  }
  Held find_held(const Layer& layer, const LayerRows& rows, size_t head) const;
  void add_dense_tiles(Plan& plan, size_t head, std::span<const DeviceSpan> spans) const;
  /// Tiles and sampled rows of what is in codes, once it is unpacked to `room`, piece by piece.
  void add_coded_tiles(Plan& plan, const RowTarget& room) const;
  /// Fills layer.found, in stream order.
  void run(Layer& layer, Plan& plan, const RowTarget& room, const DeviceProbeStep& step) const;
  /// The answer over all tiles of a head's queries, and the coded ones apart.
  std::unique_ptr<CodedSpans> merge(const Layer& layer, size_t head, const Plan& plan,
                                    ProbedHead& out) const;
  void describe_sample(const Layer& layer, size_t head, const Plan& plan, ProbedHead& out) const;
  /// The step's comparisons, by another thread.
  void start_comparing();
  void finish_comparing() const;
  /// Rows that entered the sample of a layer, from `from.row` on.
  void add_copies(std::vector<RowCopy>& copies, const Layer& layer, const RowTarget& from) const;

  DeviceProbeSite site_;
  std::shared_ptr<ThreadPool> pool_;
  std::vector<std::optional<Layer>> layers_;  // [L]
  std::vector<ProbeSample::Entry> entries_;   // of the last append
  bool comparing_ = false;
  std::vector<Comparison> comparisons_;  // of this step
  StreamMark found_;                     // the host has what it takes
  mutable std::future<void> running_;    // of an earlier one
};

}  // namespace pith::cuda
