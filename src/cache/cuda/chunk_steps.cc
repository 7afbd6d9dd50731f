#include "cache/cuda/chunk_steps.h"

#include "cache/cuda/head_passes.h"

namespace pith::cuda {

RowTarget ChunkSteps::begin_chunk(int layer, size_t tokens) {
  check_chunk(cache_.policy->prompt(), tokens);
  cache_.token_begun = false;
  cache_.moves.set_one_by_one(false);
  return chunk_ = at(layer).begin_chunk(tokens, cache_.space);
}

RowTarget ChunkSteps::begin_prompt(int layer, size_t tokens) {
  cache_.token_begun = false;
  cache_.moves.set_one_by_one(true);
  return chunk_ = at(layer).begin_chunk(tokens, cache_.space);
}

void ChunkSteps::end_prompt(int layer, size_t tokens, bool ends) {
  end_chunk(layer, tokens);
  cache_.moves.set_one_by_one(false);
  for (const HeadRun& run : at(layer).runs()) {
    if (ends) HeadPasses(*run.stores).end_prefill(cache_.space);
    if (!ends) run.stores->shrink();
  }
  if (ends && is_last(layer)) cache_.notes.end_prompt(cache_.layers.tokens());
}

CausalCall ChunkSteps::chunk_call(int layer, const void* q, size_t tokens) const {
  const CacheShape& shape = cache_.shape;
  CausalCall call{shape.query_heads,        shape.kv_heads, shape.head_dim,
                  static_cast<int>(tokens), cache_.dtype,   q};
  call.soft_cap = shape.soft_cap;
  call.sinks = cache_.sinks.of(layer);
  return call;
}

void ChunkSteps::attend_chunk(int layer, void* result, DType dtype, const void* q, size_t tokens) {
  CausalCall call = chunk_call(layer, q, tokens);
  call.result = result;
  call.result_dtype = dtype;
  at(layer).attend_chunk(call, cache_.space, cache_.moves.named(),
                         [this] { cache_.moves.pass_layer(false); });
}

const float* ChunkSteps::attend_chunk_only(int layer, const void* q, size_t tokens) {
  CausalCall call = chunk_call(layer, q, tokens);
  at(layer).attend_held(call, cache_.space);
  const CacheShape& shape = cache_.shape;
  const size_t numbers = tokens * static_cast<size_t>(shape.query_heads * shape.head_dim);
  if (call.first) {
    check(cudaMemsetAsync(call.out, 0, numbers * sizeof(float), cache_.stream),
          "attention to no rows");
  }
  return call.out;
}

void ChunkSteps::end_chunk(int layer, size_t tokens) {
  if (cache_.probe) cache_.probe->append_chunk(layer, chunk_, tokens);
  at(layer).end_chunk(tokens, cache_.space, cache_.moves.named());
  cache_.moves.pass_layer(is_last(layer));
}

void ChunkSteps::append_chunk(int layer, size_t tokens) {
  if (cache_.probe) cache_.probe->append_chunk(layer, chunk_, tokens);
  at(layer).append_chunk(tokens, cache_.space, cache_.moves.named(),
                         [this] { cache_.moves.pass_layer(false); });
  cache_.moves.pass_layer(is_last(layer));
}

void ChunkSteps::end_prefill() {
  cache_.token_begun = false;
  cache_.notes.end_prompt(cache_.layers.tokens());
  for (const auto& layer : cache_.layers.all()) {
    for (const HeadRun& run : layer->runs()) HeadPasses(*run.stores).end_prefill(cache_.space);
  }
}

}  // namespace pith::cuda
