#pragma once
// A prompt that is read exactly, a layer at a time: all tokens go through a layer, in blocks that
// attend to what the cache holds and to the prompt's own rows as they are; then the layer's rows go
// to the cache, which compresses them. Memory: the residual stream [T, hidden] and one layer's keys
// and values, all f32; never more than one layer's exact rows. Work is run()'s. Bits are those of
// one pass over all tokens, if a matrix product's do not depend on how many rows it has.

#include <vector>

#include "model/forward.h"
#include "model/prompt_blocks.h"

namespace pith {

class PromptPass {
 public:
  /// Takes all its memory from `context`, as kScratch. `forward` and what `context` names must
  /// outlive it. `ends`: a prompt ends with the tokens.
  PromptPass(Forward& forward, const Context& context, const Model& model, const KvCache& cache,
             std::span<const int32_t> tokens, bool ends);

  size_t tokens() const { return tokens_.size(); }
  size_t units() const { return blocks_.size() * static_cast<size_t>(config_.layers); }
  size_t units_done() const { return done_; }
  bool done() const { return done_ == units(); }
  /// Runs the next unit: a block in a layer. The cache is that of the making, or its copy.
  void advance(KvCache& cache);
  /// Where each token left off, once it is done: [T, hidden].
  const Array<float>& states() const { return hidden_; }

 private:
  Forward& forward_;
  const ModelConfig& config_;
  std::vector<int32_t> tokens_;
  int64_t first_position_;
  bool ends_;
  std::vector<PromptRange> blocks_;
  size_t done_ = 0;
  Array<float> hidden_;  // [T, hidden]
  Array<float> k_, v_;   // [T, G, D] of the layer at hand
  Array<float> mass_;    // [G, T] likewise, if a selector of any layer asks for it
};

}  // namespace pith
