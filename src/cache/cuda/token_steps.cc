#include "cache/cuda/token_steps.h"

#include <algorithm>

#include "cache/cuda/head_attention.h"
#include "cache/cuda/head_passes.h"

namespace pith::cuda {

TokenSteps::TokenSteps(CacheParts& cache, MemoryCounter& memory) : cache_(cache), memory_(memory) {
  renew();
}

void TokenSteps::renew() {
  for (const auto& layer : cache_.layers.all())
    cache_.space.set_layers_together(layer->layers_together());
  cache_.token_begun = false;
  targets_.resize(cache_.layers.size());
  numbers_.make(cache_.layers, cache_.shape, memory_, cache_.stream);
  log_sum_ = DeviceArray<float>(memory_, MemoryKind::kScratch,
                                static_cast<size_t>(cache_.shape.query_heads), cache_.stream);
}

void TokenSteps::begin_ahead() {
  const auto waits = [](HeadStores& stores) { return !HeadPasses(stores).begins_freely(); };
  if (!cache_.probe && !cache_.layers.any_stores(waits)) begin_token();
}

void TokenSteps::begin_token() {
  if (cache_.token_begun) return;
  numbers_.begin();
  for (size_t l = 0; l < targets_.size(); ++l)
    targets_[l] = cache_.layers.all()[l]->begin_token(numbers_.on_host(l));
  if (cache_.probe) cache_.probe->begin_token();
  blocks_ = numbers_.blocks(token_shape().query_blocks());
  cache_.token_begun = true;
}

DecodeShape TokenSteps::token_shape() const {
  const CacheShape& shape = cache_.shape;
  return {1, shape.query_heads, shape.kv_heads, shape.head_dim, 1, 0, shape.soft_cap};
}

DecodePlace TokenSteps::token_place(int layer, float* out, const void* q) const {
  const size_t i = cache_.layers.index(layer);
  return {q,
          numbers_.device_spans(i),
          out,
          log_sum_.data(),
          numbers_.device_notes(i),
          cache_.sinks.of(layer)};
}

DecodePlace TokenSteps::place_of_call(int layer, size_t call, const DecodePlace& whole) const {
  const RowTarget* targets = numbers_.device_targets(cache_.layers.index(layer));
  return cache_.layers.at(layer).place_of(call, whole, targets);
}

TokenStep TokenSteps::token_step(int layer, const DecodePlace& place,
                                 const DecodeScratch& scratch) const {
  DecodeCall call{place, token_shape()};
  call.dtype = cache_.dtype;
  call.ready = true;  // spans came before the step's first kernel, codes with the token before
  const size_t i = cache_.layers.index(layer);
  return {call, scratch, numbers_.device_notes(i), numbers_.device_targets(i)};
}

void TokenSteps::attend_token(int layer, const DecodePlace& place, const DecodeScratch& scratch,
                              const DecodeCompany& company) const {
  TokenStep step = token_step(layer, place, scratch);
  step.call.company = company;
  if (comparing()) step.call.company.groups = nullptr;
  cache_.layers.at(layer).attend_token(step);
}

bool TokenSteps::steps_apart() const {
  const auto watches = [](HeadStores& stores) { return HeadAttention(stores).watches_queries(); };
  return comparing() || cache_.layers.any_stores(watches);
}

void TokenSteps::compare_token(int layer, const float* out, const void* q) {
  const std::vector<DeviceSpan> spans = numbers_.spans(cache_.layers.index(layer));
  cache_.probe->compare(layer, {cache_.layers.at(layer), spans.data(), q, out,
                                [this] { return cache_.space.piece(); }});
}

void TokenSteps::end_token(LateWork& late) {
  cache_.token_begun = false;
  if (cache_.probe) cache_.probe->append_token(targets_);
  cache_.moves.end_token(cache_.layers, late);
}

void TokenSteps::begin_query() {
  cache_.token_begun = false;
  numbers_.begin();
  for (size_t l = 0; l < targets_.size(); ++l)
    cache_.layers.all()[l]->write_spans(numbers_.on_host(l));
}

void TokenSteps::attend_only(int layer, const DecodePlace& place,
                             const DecodeScratch& scratch) const {
  TokenStep step = token_step(layer, place, scratch);
  step.only_reads = true;
  cache_.layers.at(layer).attend_token(step);
}

}  // namespace pith::cuda
