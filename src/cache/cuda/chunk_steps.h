#pragma once
// A cache's steps on the GPU of many tokens each: chunks of a prompt, whole prompts, and queries
// that bring no rows.

#include "cache/cuda/cache_parts.h"

namespace pith::cuda {

class ChunkSteps {
 public:
  explicit ChunkSteps(CacheParts& cache) : cache_(cache) {}

  /// A chunk, layer by layer: rows are written from the target on, then queries attend. Throws
  /// kUnsupported where the policy reads whole prompts.
  RowTarget begin_chunk(int layer, size_t tokens);
  /// result [T, H, D] of `dtype` <- attention of q [T, H, D].
  void attend_chunk(int layer, void* result, DType dtype, const void* q, size_t tokens);
  void end_chunk(int layer, size_t tokens);
  /// As end_chunk, of a chunk whose queries nobody asked.
  void append_chunk(int layer, size_t tokens);
  /// All chunks of a prompt have come.
  void end_prefill();

  /// A prompt that is read a layer at a time, as a chunk of all its tokens: attend_chunk follows,
  /// then end_prompt, before the next layer begins. Its rows are taken one layer after another.
  RowTarget begin_prompt(int layer, size_t tokens);
  /// `ends`: the prompt is complete in this layer.
  void end_prompt(int layer, size_t tokens, bool ends);

  /// Queries over the rows held that bring none, of a cache of one layer: their answers, f32
  /// [T, H, D], in scratch memory, until the next call.
  const float* attend_chunk_only(int layer, const void* q, size_t tokens);

 private:
  CausalCall chunk_call(int layer, const void* q, size_t tokens) const;
  LayerRows& at(int layer) const { return cache_.layers.at(layer); }
  bool is_last(int layer) const { return layer + 1 == cache_.layers.end(); }

  CacheParts& cache_;
  RowTarget chunk_;  // where the chunk's rows of the layer came
};

}  // namespace pith::cuda
