#include "cache/cuda/head_queries.h"

#include <algorithm>
#include <utility>

namespace pith::cuda {

HeadQueries::HeadQueries(const LayerPlan& layer, const LayerSite& site,
                         std::shared_ptr<const DeviceChooser> chooser)
    : dtype_(layer.dtype),
      sink_(layer.schedule.sink),
      site_(site),
      chooser_(std::move(chooser)),
      scaled_(*site.memory, MemoryKind::kScratch, {site.query_heads, 2 * site.dim}, site.stream),
      state_(*site.memory, MemoryKind::kMetadata, {1, sizeof(float), true}, site.stream) {
  if (chooser_->scales_queries()) scaled_.renew(1);
  const size_t numbers = chooser_->state_numbers(site.query_heads, site.dim);
  if (numbers > 0) state_.renew(numbers);
}

StepQueries HeadQueries::step_of(const void* q, size_t tokens) const {
  StepQueries queries;
  queries.dtype = dtype_;
  queries.query_heads = static_cast<int>(site_.query_heads);
  queries.kv_heads = static_cast<int>(site_.heads);
  queries.dim = static_cast<int>(site_.dim);
  queries.tokens = static_cast<int>(tokens);
  queries.q = q;
  queries.state = state_.at<float>();
  queries.frequencies = site_.rope ? site_.rope->device.data() : nullptr;
  return queries;
}

QueryNote HeadQueries::note(size_t seen, size_t tokens) const {
  const size_t missing = sink_ - std::min(sink_, seen);
  return {static_cast<int64_t>(seen), static_cast<int32_t>(std::min(tokens, missing)),
          static_cast<int32_t>(seen - std::min(sink_, seen))};
}

SeenQueries HeadQueries::seen(size_t tokens) const {
  return {state_.at<float>(), static_cast<int>(site_.query_heads / site_.heads),
          static_cast<int64_t>(tokens), static_cast<int64_t>(tokens - std::min(tokens, sink_)),
          site_.rope ? &site_.rope->host : nullptr};
}

DecodeCall HeadQueries::begin_token(const TokenStep& step) const {
  if (kept() && !step.only_reads)
    chooser_->observe_token(step_of(step.call.q, 1), &step.note->queries, site_.stream);
  if (!chooser_->scales_queries()) return step.call;
  DecodeCall call = step.alone();
  chooser_->scale_token(scaled_.at(), step_of(call.q, 1), &step.note->queries, site_.stream);
  call.q = scaled_.at();
  return call;
}

void HeadQueries::observe_chunk(const CausalCall& call, const QueryNote& note) const {
  if (!kept()) return;
  StepQueries queries = step_of(call.q, static_cast<size_t>(call.tokens));
  queries.scratch = call.out;
  chooser_->observe_chunk(queries, note, site_.stream);
}

void HeadQueries::scale_chunk(CausalCall& call, const QueryNote& note, ChunkSpace& space) const {
  if (!chooser_->scales_queries()) return;
  const auto tokens = static_cast<size_t>(call.tokens);
  void* scaled = space.queries(tokens);
  chooser_->scale_chunk(scaled, step_of(call.q, tokens), note, site_.stream);
  call.q = scaled;
}

void HeadQueries::archive(Archive& a) {
  archive_finite(a, state_.runs(state_.capacity()), DType::kF32, site_.stream);
}

}  // namespace pith::cuda
