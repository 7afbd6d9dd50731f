#include "cache/cuda/device_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "cache/cuda/head_attention.h"
#include "cache/cuda/head_passes.h"
#include "cache/cuda/head_state.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

/// All bits of them.
std::string name_of(const std::vector<double>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double)};
}

}  // namespace

DeviceCache::DeviceCache(MemoryCounter& memory, const CacheShape& shape, const Policy& policy,
                         uint64_t seed, cudaStream_t stream, const LayerRopes& ropes,
                         std::shared_ptr<DeviceCommon> common, std::optional<int> only)
    : memory_(memory),
      shape_(shape),
      stream_(stream),
      layer_ropes_(ropes),
      policy_(std::make_shared<const ResolvedPolicy>(policy, shape, seed, Device::kCuda)),
      kind_(std::hash<std::string>{}(policy_->describe({}))),
      seed_(seed),
      first_layer_(only.value_or(0)),
      common_(common ? std::move(common) : std::make_shared<DeviceCommon>(memory.root())),
      space_(common_->space(site())),
      sinks_(common_->memory(), shape, first_layer_, only ? *only + 1 : shape.layers, stream) {
  const int end = only ? *only + 1 : shape.layers;
  std::vector<std::vector<Part>> plans;
  for (int l = first_layer_; l < end; ++l) plans.push_back(plan_heads(l));
  dtype_ = plans.front().front().plan.dtype;
  for (const std::vector<Part>& layer : plans) {
    for (const Part& part : layer) cache_positions_ |= part.plan.cache_positions;
  }
  for (const Rope* rope : ropes.distinct()) {
    const std::vector<double>& angles = rope->frequencies();
    ropes_.push_back(common_->ropes.of(name_of(angles), [&] {
      return std::make_shared<RopeTable>(common_->memory(), angles, stream);
    }));
  }
  for (int l = first_layer_; l < end; ++l) layers_.push_back(make_layer(l, plans[index(l)]));
  make_step_memory();
}

std::vector<DeviceCache::Part> DeviceCache::plan_heads(int layer) const {
  std::vector<Part> parts;
  std::vector<const CohortPolicy*> rules(static_cast<size_t>(shape_.kv_heads));  // [G]
  for (const CohortPolicy& cohort : policy_->layer(layer)) {
    for (const int head : cohort.heads) rules[static_cast<size_t>(head)] = &cohort;
  }
  for (size_t g = 0, end = 0; g < rules.size(); g = end) {
    while (end < rules.size() && rules[end] == rules[g]) ++end;
    const HeadRange heads{static_cast<int>(g), static_cast<int>(end - g)};
    parts.push_back({heads, plan_layer(*rules[g], heads)});
  }
  return parts;
}

// A codec learns tables from its rows: such tables are made for each cache. One that has none is
// the same for all layers and caches, whose rows are coded together.
std::shared_ptr<const DeviceCodec> DeviceCache::with_tables(const LayerPlan& plan,
                                                            const TableSite& t) {
  const auto make = [&] {
    const auto own = plan.codec->with_tables(t);
    return own ? own : common_->codecs.of(plan.codec_name, [&] { return plan.codec; });
  };
  if (!plan.codec || plan.codec->learns_from() > 0) return plan.codec ? make() : nullptr;
  const auto name =
      fmt::format("{}, layer {} of model {}, {} KV heads from {} of {} channels, seed {}, {}",
                  plan.codec_name, t.layer, t.model, t.kv_heads, t.first_head, t.head_dim, t.seed,
                  t.frequencies ? name_of(*t.frequencies) : "no RoPE");
  return common_->codecs.of(name, make);
}

std::unique_ptr<LayerRows> DeviceCache::make_layer(int layer, std::vector<Part>& parts) {
  std::vector<HeadRun> runs;
  for (Part& part : parts) {
    const TableSite tables{&memory_.root(),
                           stream_,
                           shape_.head_dim,
                           part.heads.count,
                           static_cast<uint32_t>(layer),
                           seed_,
                           shape_.model,
                           rope(layer) ? &rope(layer)->host : nullptr,
                           static_cast<uint32_t>(part.heads.first),
                           &common_->memory()};
    LayerPlan& plan = part.plan;
    plan.codec = with_tables(plan, tables);
    LayerSite of_run = site();
    of_run.rope = rope(layer);
    of_run.heads = static_cast<size_t>(part.heads.count);
    of_run.query_heads = of_run.heads * static_cast<size_t>(shape_.query_heads / shape_.kv_heads);
    runs.push_back(
        {static_cast<size_t>(part.heads.first), std::make_unique<HeadStores>(plan, of_run)});
  }
  return std::make_unique<LayerRows>(std::move(runs), site());
}

DeviceCache::DeviceCache(const DeviceCache& o)
    : memory_(o.memory_.of_copies()),
      shape_(o.shape_),
      stream_(o.stream_),
      layer_ropes_(o.layer_ropes_),
      ropes_(o.ropes_),
      dtype_(o.dtype_),
      policy_(o.policy_),
      kind_(o.kind_),
      seed_(o.seed_),
      notes_(o.notes_),
      first_layer_(o.first_layer_),
      layers_(o.layers_),
      common_(o.common_),
      space_(o.space_),
      sinks_(o.sinks_),
      cache_positions_(o.cache_positions_),
      probe_(o.probe_) {
  make_step_memory();
}

LayerSite DeviceCache::site() const {
  return {&memory_,
          stream_,
          static_cast<size_t>(shape_.query_heads),
          static_cast<size_t>(shape_.kv_heads),
          static_cast<size_t>(shape_.head_dim),
          shape_.context};
}

std::unique_ptr<DeviceCache> DeviceCache::clone() const {
  return std::unique_ptr<DeviceCache>(new DeviceCache(*this));
}

void DeviceCache::protect(std::span<const TokenRange> ranges) {
  if (ranges.empty()) return;
  policy_->check_protect();
  ProtectedRows all = notes_.protected_rows;
  all.add(ranges, static_cast<int64_t>(tokens()), static_cast<int64_t>(shape_.context));
  notes_.protected_rows = std::move(all);
  for (int l = first_layer_; l < end_layer(); ++l) {
    if (!slides(l)) at(l).protect(notes_.protected_rows);
  }
  check(cudaStreamSynchronize(stream_), "protecting tokens");  // steps read what is made anew
  make_step_memory();
}

void DeviceCache::make_step_memory() {
  first_spans_.clear();
  first_notes_.clear();
  first_targets_.clear();
  reads_notes_ = false;
  size_t spans = 0, notes = 0, targets = 0;
  for (const auto& layer : layers_) {
    first_spans_.push_back(spans);
    first_notes_.push_back(notes);
    first_targets_.push_back(targets);
    spans += layer->forms().spans();
    notes += layer->forms().notes();
    targets += layer->has_targets() ? static_cast<size_t>(shape_.kv_heads) : 0;
    space_.set_layers_together(layer->layers_together());
    for (const HeadRun& run : layer->runs())
      reads_notes_ |= HeadAttention(*run.stores).reads_notes();
  }
  begun_ = false;
  targets_.resize(layers_.size());
  spans_ = StepSpans(memory_, spans, stream_);
  token_notes_ = MirroredArray<TokenNote>(memory_, MemoryKind::kScratch, notes, stream_);
  head_targets_ = MirroredArray<RowTarget>(memory_, MemoryKind::kScratch, targets, stream_);
  for (size_t l = 0; l < layers_.size(); ++l)
    layers_[l]->forms().mark_spans(spans_, first_spans_[l]);
  std::fill_n(token_notes_.host(), notes, TokenNote{});
  log_sum_ = DeviceArray<float>(memory_, MemoryKind::kScratch,
                                static_cast<size_t>(shape_.query_heads), stream_);
}

void DeviceCache::begin_ahead() {
  const auto freely = [](const auto& layer) {
    return std::ranges::all_of(
        layer->runs(), [](const HeadRun& run) { return HeadPasses(*run.stores).begins_freely(); });
  };
  if (!probe_ && std::ranges::all_of(layers_, freely)) begin_token();
}

void DeviceCache::begin_token() {
  if (begun_) return;
  spans_.begin();
  for (size_t l = 0; l < layers_.size(); ++l) targets_[l] = layers_[l]->begin_token(slots_of(l));
  if (probe_) probe_->begin_token();
  blocks_ = count_blocks();
  begun_ = true;
}

TokenSlots DeviceCache::slots_of(size_t i) {
  return {&spans_, first_spans_[i], token_notes_.host() + first_notes_[i],
          head_targets_.host() + first_targets_[i]};
}

std::vector<Upload> DeviceCache::token_uploads() const {
  std::vector<Upload> all{spans_.upload()};
  if (reads_notes_) all.push_back(token_notes_.upload_of(token_notes_.size()));
  if (head_targets_.size() > 0) all.push_back(head_targets_.upload_of(head_targets_.size()));
  return all;
}

DecodeShape DeviceCache::token_shape() const {
  return {1, shape_.query_heads, shape_.kv_heads, shape_.head_dim, 1, 0, shape_.soft_cap};
}

DecodePlace DeviceCache::token_place(int layer, float* out, const void* q) const {
  const size_t first = first_spans_[index(layer)];
  return {q,
          spans_.device() + first,
          out,
          log_sum_.data(),
          token_notes_.device() + first_notes_[index(layer)],
          sinks_.of(layer)};
}

int DeviceCache::count_blocks() const {
  constexpr int32_t kDenseRows = 16;  // of a tile
  size_t most = 0, layer = 0, tiles = 0;
  spans_.for_each([&](const DeviceSpan& span, const StepSpans::Place& place) {
    while (layer + 1 < layers_.size() && place.at >= first_spans_[layer + 1]) ++layer, tiles = 0;
    const int32_t rows = span.coded ? static_cast<int32_t>(kBlockRows) : kDenseRows;
    tiles += place.heads * static_cast<size_t>((span.rows + rows - 1) / rows);
    most = std::max(most, tiles);
  });
  tiles = most * static_cast<size_t>(token_shape().query_blocks());
  return static_cast<int>(std::max<size_t>(1, (tiles + kTilesABlock - 1) / kTilesABlock));
}

TokenStep DeviceCache::token_step(int layer, const DecodePlace& place,
                                  const DecodeScratch& scratch) const {
  DecodeCall call{place, token_shape()};
  call.dtype = dtype_;
  call.ready = true;  // spans came before the step's first kernel, codes with the token before
  const size_t i = index(layer);
  return {call, scratch, token_notes_.device() + first_notes_[i],
          head_targets_.device() + first_targets_[i]};
}

void DeviceCache::attend_token(int layer, const DecodePlace& place, const DecodeScratch& scratch,
                               const DecodeCompany& company) const {
  TokenStep step = token_step(layer, place, scratch);
  step.call.company = company;
  if (comparing()) step.call.company.groups = nullptr;
  at(layer).attend_token(step);
}

bool DeviceCache::steps_apart() const {
  const auto watches = [](const auto& layer) {
    return std::ranges::any_of(layer->runs(), [](const HeadRun& run) {
      return HeadAttention(*run.stores).watches_queries();
    });
  };
  return comparing() || std::ranges::any_of(layers_, watches);
}

void DeviceCache::begin_query() {
  begun_ = false;
  spans_.begin();
  for (size_t l = 0; l < layers_.size(); ++l) layers_[l]->write_spans(slots_of(l));
}

void DeviceCache::attend_only(int layer, const DecodePlace& place,
                              const DecodeScratch& scratch) const {
  TokenStep step = token_step(layer, place, scratch);
  step.only_reads = true;
  at(layer).attend_token(step);
}

void DeviceCache::compare_token(int layer, const float* out, const void* q) {
  const std::vector<DeviceSpan> spans =
      spans_.read(first_spans_[index(layer)], at(layer).forms().spans());
  probe_->compare(layer, {at(layer), spans.data(), q, out, [this] { return space_.piece(); }});
}

void DeviceCache::end_token(LateWork& late) {
  begun_ = false;
  if (probe_) probe_->append_token(targets_);
  // The caches of a pass share the places of staged rows: none is named again before its rows left.
  size_t waiting = 0;  // of this cache
  const auto named = [&] {
    if (late_.staged() == waiting) return;
    waiting = late_.staged();
    if (!one_by_one_ && late.staged() + waiting < space_.layers_together())
      return space_.next_layer();
    late.join(late_, space_, stream_);
    late.take_moves(space_, stream_);
    waiting = 0;
  };
  for (int l = first_layer_; l < end_layer(); ++l) at(l).end_token(space_, late_, named);
  late.join(late_, space_, stream_);
}

void DeviceCache::pass_layer(bool last) {
  // Scratch of a layer's own is needed only by one that waits: of a long prompt it is much.
  if (!one_by_one_ && ++layers_waiting_ < space_.layers_together() && !last)
    return space_.next_layer();
  take_moves();
}

void DeviceCache::take_moves() {
  late_.take_moves(space_, stream_);
  layers_waiting_ = 0;
}

RowTarget DeviceCache::begin_chunk(int layer, size_t tokens) {
  check_chunk(policy_->prompt(), tokens);
  begun_ = one_by_one_ = false;
  return chunk_ = at(layer).begin_chunk(tokens, space_);
}

RowTarget DeviceCache::begin_prompt(int layer, size_t tokens) {
  begun_ = false;
  one_by_one_ = true;
  return chunk_ = at(layer).begin_chunk(tokens, space_);
}

void DeviceCache::end_prompt(int layer, size_t tokens, bool ends) {
  end_chunk(layer, tokens);
  one_by_one_ = false;
  for (const HeadRun& run : at(layer).runs()) {
    if (ends) HeadPasses(*run.stores).end_prefill(space_);
    if (!ends) run.stores->shrink();
  }
  if (ends && layer + 1 == end_layer()) notes_.end_prompt(this->tokens());
}

CausalCall DeviceCache::chunk_call(int layer, const void* q, size_t tokens) const {
  CausalCall call{shape_.query_heads,       shape_.kv_heads, shape_.head_dim,
                  static_cast<int>(tokens), dtype_,          q};
  call.soft_cap = shape_.soft_cap;
  call.sinks = sinks_.of(layer);
  return call;
}

void DeviceCache::attend_chunk(int layer, void* result, DType dtype, const void* q, size_t tokens) {
  CausalCall call = chunk_call(layer, q, tokens);
  call.result = result;
  call.result_dtype = dtype;
  at(layer).attend_chunk(call, space_, late_, [this] { pass_layer(false); });
}

const float* DeviceCache::attend_chunk_only(int layer, const void* q, size_t tokens) {
  CausalCall call = chunk_call(layer, q, tokens);
  at(layer).attend_held(call, space_);
  const size_t numbers = tokens * static_cast<size_t>(shape_.query_heads * shape_.head_dim);
  if (call.first)
    check(cudaMemsetAsync(call.out, 0, numbers * sizeof(float), stream_), "attention to no rows");
  return call.out;
}

void DeviceCache::end_chunk(int layer, size_t tokens) {
  if (probe_) probe_->append_chunk(layer, chunk_, tokens);
  at(layer).end_chunk(tokens, space_, late_);
  pass_layer(layer + 1 == end_layer());
}

void DeviceCache::append_chunk(int layer, size_t tokens) {
  if (probe_) probe_->append_chunk(layer, chunk_, tokens);
  at(layer).append_chunk(tokens, space_, late_, [this] { pass_layer(false); });
  pass_layer(layer + 1 == end_layer());
}

void DeviceCache::end_prefill() {
  begun_ = false;
  notes_.end_prompt(tokens());
  for (const auto& layer : layers_) {
    for (const HeadRun& run : layer->runs()) HeadPasses(*run.stores).end_prefill(space_);
  }
}

size_t DeviceCache::tokens() const {
  size_t most = 0;
  for (const auto& layer : layers_) most = std::max(most, layer->tokens());
  return most;
}

void DeviceCache::archive(Archive& a) {
  uint64_t tokens = this->tokens();
  notes_.archive(a, tokens, shape_.context,
                 [&](std::span<const TokenRange> ranges) { protect(ranges); });
  loaded_ = tokens;
}

void DeviceCache::archive_layer(int layer, Archive& a) {
  begun_ = false;
  a.at(fmt::format("layer {}", layer));
  for (const HeadRun& run : at(layer).runs())
    cuda::archive(a, *run.stores, {loaded_, notes_.prompt_ends});
  if (probe_) probe_->archive(layer, a, loaded_);
}

void DeviceCache::start_error_probe(const ErrorProbeOptions& options, uint64_t seed, int threads) {
  check_error_probe(options);
  if (shape_.varies()) refuse_variant();
  if (cache_positions_) refuse_cache_positions();
  begun_ = false;
  probe_ = std::make_unique<DeviceProbe>(
      DeviceProbeSite{&memory_, stream_, shape_, dtype_, seed, first_layer_, end_layer()}, options,
      threads);
}

HeadRows DeviceCache::rows(int layer, int head) const {
  if (layer < first_layer_ || layer >= end_layer() || head < 0 || head >= shape_.kv_heads) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("layer {}, KV head {} of a cache with {} layers and {} KV heads", layer,
                            head, shape_.layers, shape_.kv_heads));
  }
  HeadRows held;
  const HeadRun& run = at(layer).run_of(static_cast<size_t>(head));
  add_rows(held, *run.stores, static_cast<size_t>(head) - run.first);
  std::vector<size_t> order(held.positions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return held.positions[i]; });
  HeadRows rows;
  for (const size_t i : order) {
    rows.positions.push_back(held.positions[i]);
    rows.log_weights.push_back(held.log_weights[i]);
  }
  rows.roles.resize(order.size(), Role::kBoth);
  return rows;
}

Ledger DeviceCache::ledger() const {
  Ledger ledger;
  const auto channels = 2 * static_cast<uint64_t>(shape_.head_dim);
  for (const auto& layer : layers_) {
    for (const HeadRun& run : layer->runs()) add_to(ledger, *run.stores);
    ledger.tokens = std::max<uint64_t>(ledger.tokens, layer->tokens());
    ledger.rows_seen += layer->tokens() * static_cast<uint64_t>(shape_.kv_heads);
  }
  ledger.channels_seen = ledger.rows_seen * channels;
  ledger.channels_kept = ledger.rows_kept * channels;
  return ledger;
}

}  // namespace pith::cuda
