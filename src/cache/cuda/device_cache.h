#pragma once
// The cache of one sequence on the GPU. How many rows lie where depends on counts alone, so the
// host plans every step by itself; what a decode step's kernels read is uploaded once a step, and
// nothing waits for the device.

#include <memory>
#include <string>
#include <vector>

#include "attend/cuda/decode.h"
#include "attend/cuda/prefill.h"
#include "cache/cuda/device_rows.h"
#include "cache/kv_cache.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/pinned.h"

namespace pith::cuda {

class DeviceCache {
 public:
  /// `memory` must outlive the cache and its clones. Throws kUnsupported, naming what of the policy
  /// the GPU does not do.
  DeviceCache(MemoryCounter& memory, const CacheShape& shape, const Policy& policy,
              cudaStream_t stream);
  std::unique_ptr<DeviceCache> clone() const;

  /// Of queries and exact rows.
  DType dtype() const { return dtype_; }

  /// One token: makes room in all layers and uploads the step; then for each layer the kernels
  /// write its row at token_target and attend; then the host's books are brought up to date.
  void begin_token();
  const RowTarget* token_target(int layer) const { return targets_.device() + layer; }
  /// out f32 [H, D] <- attention of q [H, D].
  void attend_token(int layer, float* out, const void* q);
  void end_token();

  /// A chunk, layer by layer: rows are written from the target on, then queries attend.
  RowTarget begin_chunk(int layer, size_t tokens);
  /// result [T, H, D] of `dtype` <- attention of q [T, H, D].
  void attend_chunk(int layer, void* result, DType dtype, const void* q, size_t tokens);
  void end_chunk(int layer, size_t tokens);

  HeadRows rows(int layer, int head) const;
  Ledger ledger() const;
  std::string describe() const;

 private:
  DeviceCache(const DeviceCache& other);
  void make_step_memory();

  MemoryCounter& memory_;
  CacheShape shape_;
  cudaStream_t stream_;
  DType dtype_ = DType::kF16;
  std::string text_;
  std::vector<DeviceRows> layers_;      // [L]
  MirroredArray<RowTarget> targets_;    // [L]
  MirroredArray<DeviceSpan> spans_;     // [L, G]
  std::unique_ptr<StreamMark> uploaded_;
  std::unique_ptr<DecodeScratch> scratch_;
};

}  // namespace pith::cuda
