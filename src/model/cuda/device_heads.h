#pragma once
// The beginning of a pass and of its layers: embeddings, angles, and heads of queries, keys and
// values.

#include <memory>
#include <span>

#include "cache/cuda/device_cache.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/pinned.h"
#include "model/cuda/device_products.h"

namespace pith::cuda {

class DeviceHeads {
 public:
  static constexpr size_t kRowBytes = 2;  // a number of exact rows and of queries

  /// Buffers, counted as kScratch. All but the weights must outlive it.
  DeviceHeads(std::shared_ptr<const DeviceWeights> weights, const ProductPlan& plan,
              DeviceProducts& products, MemoryCounter& memory, cudaStream_t stream);

  /// Embeddings and angles of ids(), at positions that follow each other or at angles().
  void look_up(const DeviceCache& cache, size_t tokens, bool own_places);
  /// The same of a chunk, whose tokens are uploaded.
  void look_up_chunk(const DeviceCache& cache, std::span<const int32_t> tokens, int64_t position);
  /// Of queries, keys and values in the products' output; where rows go is left to be said.
  HeadsCall heads_call(const DeviceCache& cache, int layer, size_t tokens) const;

  std::byte* q() const { return q_.data(); }  ///< [T, H, D] of the rows' type
  float* cos(size_t rope) const { return cos_.data() + angles_at(rope); }  ///< [T, D / 2]
  float* sin(size_t rope) const { return sin_.data() + angles_at(rope); }
  MirroredArray<int32_t>& ids() { return ids_; }            ///< [T]
  MirroredArray<AngleSource>& angles() { return angles_; }  ///< [ropes, tokens of the pass]
  /// Set when everything that the host wrote for the last run has been read.
  StreamMark& uploaded() { return uploaded_; }

 private:
  size_t angles_at(size_t rope) const {
    return rope * plan_.room() * static_cast<size_t>(config_.head_dim) / 2;
  }

  const std::shared_ptr<const DeviceWeights> weights_;
  const ModelConfig& config_;
  const ProductPlan& plan_;
  DeviceProducts& products_;
  cudaStream_t stream_;
  MirroredArray<int32_t> ids_;
  MirroredArray<int64_t> position_;  // [1]
  MirroredArray<AngleSource> angles_;
  DeviceArray<std::byte> q_;
  DeviceArray<float> cos_, sin_;  // [ropes, T, D/2]
  StreamMark uploaded_;
};

}  // namespace pith::cuda
