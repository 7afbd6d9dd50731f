#pragma once
// Where the attention of a pass's tokens finds its input and leaves its output, as descriptors that
// a graph's kernels read.

#include <cstdint>
#include <span>
#include <vector>

#include "cache/cuda/device_cache.h"
#include "kernels/cuda/pinned.h"
#include "model/cuda/device_heads.h"
#include "model/cuda/pass_graphs.h"

namespace pith::cuda {

/// One token of a sequence in a pass of many.
struct TokenRun {
  DeviceCache* cache = nullptr;
  int32_t token = 0;
  int64_t position = 0;
  /// [hidden] on the device: the residual stream after the last layer is left here.
  float* state = nullptr;
};

class PassPlaces {
 public:
  /// Room for `tokens`, counted as kScratch. With new memory `graphs` are captured anew: they know
  /// where places are.
  PassPlaces(const ModelConfig& config, size_t tokens, DeviceHeads& heads, DeviceProducts& products,
             PassGraphs& graphs, MemoryCounter& memory, cudaStream_t stream);

  /// Writes where the sequences' numbers are, unless they are those of the pass before: false.
  bool seat(std::span<const TokenRun> runs);
  const std::vector<const DeviceCache*>& seated() const { return seated_; }
  /// Nobody is seated.
  void clear() { seated_.clear(); }
  /// Of a layer, for the pass's token `i`.
  DecodePlace place_of(const DeviceCache& cache, int layer, size_t i) const;
  /// Of a layer on the device: [calls of the layer, tokens of the pass].
  const DecodePlace* of_layer(int layer) const {
    return places_.device() + first_[static_cast<size_t>(layer)];
  }
  Upload upload() { return places_.upload_of(first_.back()); }
  size_t capacity() const { return places_.size(); }
  void reserve(size_t count);

 private:
  const ModelConfig& config_;
  DeviceHeads& heads_;
  DeviceProducts& products_;
  PassGraphs& graphs_;
  MemoryCounter& memory_;
  cudaStream_t stream_;
  MirroredArray<DecodePlace> places_;       // [L, calls of the layer, tokens of the pass]
  std::vector<size_t> first_;               // [L + 1] where a layer's begin
  std::vector<const DeviceCache*> seated_;  // whose places_ are
};

}  // namespace pith::cuda
