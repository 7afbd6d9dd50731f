#pragma once
// Passes of one token of each of many sequences, replayed as one graph: products see all tokens
// together, attention each sequence by itself.

#include <memory>
#include <set>
#include <span>
#include <vector>

#include "attend/cuda/decode_groups.h"
#include "cache/cuda/device_cache.h"
#include "kernels/cuda/pinned.h"
#include "model/cuda/device_heads.h"
#include "model/cuda/device_products.h"
#include "model/cuda/pass_graphs.h"
#include "model/cuda/pass_places.h"

namespace pith::cuda {

class TokenPasses {
 public:
  /// Buffers, counted as kScratch. All but the weights must outlive it.
  TokenPasses(std::shared_ptr<const DeviceWeights> weights, const ProductPlan& plan,
              DeviceProducts& products, DeviceHeads& heads, MemoryCounter& memory,
              cudaStream_t stream);

  /// As DeviceForward says.
  void prepare(size_t tokens, size_t calls);
  void run(std::span<const TokenRun> runs);
  void forget(const DeviceCache& cache);
  void make_logits_after(std::span<float* const> states);

 private:
  void note(std::span<const TokenRun> runs);
  void count_blocks(std::span<const TokenRun> runs);
  void upload(std::span<const TokenRun> runs, bool seated);
  TokenPass& pass_of(std::span<const TokenRun> runs);
  void replay(std::span<const TokenRun> runs, TokenPass& pass);
  void enqueue(std::span<const TokenRun> runs, const TokenPass& pass);
  bool knows_kinds(std::span<const TokenRun> runs) const;
  std::vector<std::vector<DecodeLaunch>> attention_of(std::span<const TokenRun> runs);
  DecodeGroups attention_groups(std::span<const TokenRun> runs, int layer);
  void attend(std::span<const TokenRun> runs, const TokenPass& pass, int layer);

  const std::shared_ptr<const DeviceWeights> weights_;
  const ModelConfig& config_;
  const ProductPlan& plan_;
  DeviceProducts& products_;
  DeviceHeads& heads_;
  cudaStream_t stream_;
  PassGraphs graphs_;
  PassPlaces places_;
  MirroredArray<RowTarget> targets_;  // [L, tokens of the pass]
  MirroredArray<float*> states_;      // [most tokens]
  DecodeScratch attention_;           // of all tokens of a pass
  std::vector<int> blocks_;           // of this pass's tokens' attention; 0: as it likes
  TokenPass* current_ = nullptr;      // of those seated; null: to be found
  std::set<size_t> kinds_;            // of caches that have been in a pass: theirs and ...
  std::set<size_t> counts_;           // ... these numbers of tokens' kernels are loaded
};

}  // namespace pith::cuda
