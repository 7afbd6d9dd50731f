#include "model/cuda/token_passes.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "kernels/cuda/uploads.h"

namespace pith::cuda {
namespace {

/// Blocks that a graph is captured with: steps of an eighth, which leave room for rows to come.
/// More would begin and end for nothing, in each session's attention.
int with_room(int blocks) {
  const int step = std::max(1, static_cast<int>(std::bit_floor(static_cast<unsigned>(blocks))) / 8);
  return (blocks / step + 1) * step;
}

}  // namespace

TokenPasses::TokenPasses(std::shared_ptr<const DeviceWeights> weights, const ProductPlan& plan,
                         DeviceProducts& products, DeviceHeads& heads, MemoryCounter& memory,
                         cudaStream_t stream)
    : weights_(std::move(weights)),
      config_(weights_->config()),
      plan_(plan),
      products_(products),
      heads_(heads),
      stream_(stream),
      graphs_(stream),
      places_(config_, plan.max_tokens(), heads, products, graphs_, memory, stream),
      targets_(memory, MemoryKind::kScratch,
               static_cast<size_t>(config_.layers) * plan.max_tokens(), stream),
      states_(memory, MemoryKind::kScratch, plan.max_tokens(), stream),
      attention_(memory, {1, config_.query_heads, config_.kv_heads, config_.head_dim, 1, 0}, stream,
                 plan.max_tokens()) {}

void TokenPasses::run(std::span<const TokenRun> runs) {
  note(runs);
  TokenPass* const latest = std::exchange(current_, nullptr);
  const bool seated = places_.seat(runs);
  if (!seated) current_ = latest;
  upload(runs, seated);
  // Such a pass is no graph.
  if (std::ranges::any_of(runs, [](const TokenRun& r) { return r.cache->steps().steps_apart(); }))
    return enqueue(runs, {});
  if (!current_) current_ = &pass_of(runs);
  replay(runs, *current_);
}

/// The inputs of the pass's kernels beside the caches' own, and where these are.
void TokenPasses::note(std::span<const TokenRun> runs) {
  const size_t n = runs.size();
  count_blocks(runs);
  for (size_t i = 0; i < n; ++i) {
    const DeviceCache& cache = *runs[i].cache;
    heads_.ids().host()[i] = runs[i].token;
    states_.host()[i] = runs[i].state;
    for (size_t r = 0; r < cache.ropes().size(); ++r)
      heads_.angles().host()[r * n + i] = {cache.ropes()[r]->device.data(), runs[i].position};
    for (int l = 0; l < config_.layers; ++l)
      targets_.host()[static_cast<size_t>(l) * n + i] = cache.steps().token_target(l);
  }
}

/// Sequences of one kind share launches, which have the blocks of the longest.
void TokenPasses::count_blocks(std::span<const TokenRun> runs) {
  std::vector<int> blocks(runs.size(), 0);
  for (size_t first = 0, end = 0; plan_.together() && first < runs.size(); first = end) {
    int most = 0;
    for (end = first; end < runs.size() && runs[end].cache->kind() == runs[first].cache->kind();)
      most = std::max(most, runs[end++].cache->steps().token_blocks());
    most = std::min(with_room(most), attention_.blocks());
    std::fill(blocks.begin() + static_cast<std::ptrdiff_t>(first),
              blocks.begin() + static_cast<std::ptrdiff_t>(end), most);
  }
  if (blocks != blocks_) current_ = nullptr;
  blocks_ = std::move(blocks);
}

void TokenPasses::prepare(size_t tokens, size_t calls) {
  const size_t count = static_cast<size_t>(config_.layers) * calls * tokens;
  if (places_.capacity() >= count) return;
  heads_.uploaded().wait();
  places_.clear();
  current_ = nullptr;
  places_.reserve(count);
}

void TokenPasses::forget(const DeviceCache& cache) {
  if (std::ranges::find(places_.seated(), &cache) != places_.seated().end()) {
    places_.clear();
    current_ = nullptr;
  }
  graphs_.forget(cache);
}

/// The inputs of a step's kernels, on their way. No part of a graph: the host knows when this is
/// over, and writes the next step's while the device works on this one's.
void TokenPasses::upload(std::span<const TokenRun> runs, bool seated) {
  const size_t n = runs.size(), all = static_cast<size_t>(config_.layers) * n;
  std::vector<Upload> uploads{heads_.ids().upload_of(n),
                              heads_.angles().upload_of(runs.front().cache->ropes().size() * n),
                              targets_.upload_of(all), states_.upload_of(n)};
  if (seated && plan_.together()) uploads.push_back(places_.upload());
  for (const TokenRun& r : runs)
    std::ranges::copy(r.cache->steps().token_uploads(), std::back_inserter(uploads));
  upload_all(uploads, stream_);
  heads_.uploaded().set(stream_);
}

bool TokenPasses::knows_kinds(std::span<const TokenRun> runs) const {
  return std::ranges::all_of(runs,
                             [&](const TokenRun& r) { return kinds_.contains(r.cache->kind()); });
}

/// The pass that those seated are in.
TokenPass& TokenPasses::pass_of(std::span<const TokenRun> runs) {
  const DeviceCache& any = *runs.front().cache;
  TokenPass pass;
  pass.form = {runs.size(), static_cast<size_t>(any.dtype()), any.ropes().size()};
  for (int l = 0; l < config_.layers; ++l) pass.form.push_back(any.rope_of(l));
  if (plan_.together() && knows_kinds(runs)) pass.attention = attention_of(runs);
  if (pass.attention.empty()) pass.caches = places_.seated(), pass.blocks = blocks_;
  return graphs_.find(std::move(pass));
}

/// Runs the pass as a graph. The first of its kernels runs them one by one, which loads them all.
void TokenPasses::replay(std::span<const TokenRun> runs, TokenPass& pass) {
  const bool loaded = pass.attention.empty() ? pass.ran : counts_.contains(runs.size());
  if (loaded) return graphs_.launch(pass, [&] { enqueue(runs, pass); });
  enqueue(runs, pass);
  pass.ran = true;
  counts_.insert(runs.size());
  if (!knows_kinds(runs)) current_ = nullptr;  // their attention can be asked for now
  for (const TokenRun& r : runs) kinds_.insert(r.cache->kind());
}

/// A step of one token a sequence. Its arguments do not change from step to step.
void TokenPasses::enqueue(std::span<const TokenRun> runs, const TokenPass& pass) {
  const size_t n = runs.size();
  const DeviceCache& any = *runs.front().cache;
  const ProductRows rows = plan_.pass_rows(n);
  heads_.look_up(any, n, true);
  for (int l = 0; l < config_.layers; ++l) {
    const DeviceLayer& w = weights_->layers()[static_cast<size_t>(l)];
    const bool last = l + 1 == config_.layers;
    const MixedMatrix& after = last ? weights_->head() : (&w)[1].qkv;
    // The bias of q, k and v is the heads' business: norms and RoPE come after it.
    products_.make_qkv(w, rows);
    HeadsCall heads = heads_.heads_call(any, l, n);
    heads.targets = targets_.device() + static_cast<size_t>(l) * n;
    make_heads(heads, stream_);
    attend(runs, pass, l);
    const void* attended = products_.input();
    if (!rows.few()) {  // queries are no longer needed
      rms_norm({heads_.q(), plan_.products(), reinterpret_cast<float*>(products_.input()), nullptr,
                0, n, static_cast<size_t>(config_.query_heads * config_.head_dim)},
               stream_);
      attended = heads_.q();
    }
    products_.add_products({&w.o, w.o_bias, w.attention_post_norm, &w.gate_up}, attended, rows);
    products_.make_mlp(w, &after, rows);
  }
  products_.make_logits(0, rows);
  scatter_rows(states_.device(), products_.hidden(), n, static_cast<size_t>(config_.hidden),
               stream_);
}

void TokenPasses::make_logits_after(std::span<float* const> states) {
  heads_.uploaded().wait();
  std::ranges::copy(states, states_.host());
  states_.upload(states.size(), stream_);
  heads_.uploaded().set(stream_);
  gather_rows(products_.hidden(), states_.device(), states.size(),
              static_cast<size_t>(config_.hidden), stream_);
  products_.make_logits(0, plan_.pass_rows(states.size()));
}

void TokenPasses::attend(std::span<const TokenRun> runs, const TokenPass& pass, int layer) {
  if (!pass.attention.empty())
    return DecodeGroups::run(pass.attention[static_cast<size_t>(layer)], stream_);
  DecodeGroups::run(attention_groups(runs, layer).take(), stream_);
}

/// Sequence by sequence; those of one policy will be one launch. The work that does not go by
/// groups is given to the stream.
DecodeGroups TokenPasses::attention_groups(std::span<const TokenRun> runs, int layer) {
  const DecodePlace* places = places_.of_layer(layer);
  DecodeGroups groups;
  for (size_t i = 0; i < runs.size(); ++i) {
    DeviceCache& cache = *runs[i].cache;
    const DecodePlace place = places_.place_of(cache, layer, i);
    DecodeCompany company;
    if (plan_.together()) company = {&groups, places + i, runs.size(), blocks_[i]};
    groups.next_sequence();
    cache.steps().attend_token(layer, place, attention_, company);
    if (cache.steps().comparing()) cache.steps().compare_token(layer, place.out, place.q);
  }
  return groups;
}

/// The launches of all layers' attention; none if some of it does not go by groups: then it is of
/// these caches alone.
std::vector<std::vector<DecodeLaunch>> TokenPasses::attention_of(std::span<const TokenRun> runs) {
  std::vector<std::vector<DecodeLaunch>> layers;
  const size_t others = graphs_.nodes_of([&] {
    for (int l = 0; l < config_.layers; ++l) layers.push_back(attention_groups(runs, l).take());
  });
  if (others > 0) layers.clear();
  return layers;
}

}  // namespace pith::cuda
