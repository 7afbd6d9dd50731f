// Passes of one token a sequence: what they read, and the graphs that are replayed. See
// device_forward.h.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <vector>

#include "kernels/cuda/uploads.h"
#include "model/cuda/device_forward.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr size_t kMostPasses = 64;  // that are remembered

/// Blocks that a graph is captured with: steps of an eighth, which leave room for rows to come.
/// More would begin and end for nothing, in each session's attention.
int with_room(int blocks) {
  const int step = std::max(1, static_cast<int>(std::bit_floor(static_cast<unsigned>(blocks))) / 8);
  return (blocks / step + 1) * step;
}

}  // namespace

void DeviceForward::run_tokens(std::span<const TokenRun> runs) {
  if (runs.empty() || runs.size() > max_tokens_)
    throw Error(ErrorCode::kInternal,
                fmt::format("a pass of {} tokens; expected 1 to {}", runs.size(), max_tokens_));
  tokens_ = 0;
  note(runs);
  upload(runs, seat(runs));
  // Such a pass is no graph.
  if (std::ranges::any_of(runs, [](const TokenRun& r) { return r.cache->steps_apart(); }))
    return enqueue_tokens(runs, {});
  if (!current_) current_ = &pass_of(runs);
  replay(runs, *current_);
}

/// The inputs of the pass's kernels beside the caches' own, and where these are.
void DeviceForward::note(std::span<const TokenRun> runs) {
  const size_t n = runs.size();
  count_blocks(runs);
  for (size_t i = 0; i < n; ++i) {
    const DeviceCache& cache = *runs[i].cache;
    ids_.host()[i] = runs[i].token;
    states_.host()[i] = runs[i].state;
    for (size_t r = 0; r < cache.ropes().size(); ++r)
      angles_.host()[r * n + i] = {cache.ropes()[r]->device.data(), runs[i].position};
    for (int l = 0; l < config_.layers; ++l)
      targets_.host()[static_cast<size_t>(l) * n + i] = cache.token_target(l);
  }
}

/// Sequences of one kind share launches, which have the blocks of the longest.
void DeviceForward::count_blocks(std::span<const TokenRun> runs) {
  std::vector<int> blocks(runs.size(), 0);
  for (size_t first = 0, end = 0; together_ && first < runs.size(); first = end) {
    int most = 0;
    for (end = first; end < runs.size() && runs[end].cache->kind() == runs[first].cache->kind();)
      most = std::max(most, runs[end++].cache->token_blocks());
    most = std::min(with_room(most), attention_.blocks());
    std::fill(blocks.begin() + static_cast<std::ptrdiff_t>(first),
              blocks.begin() + static_cast<std::ptrdiff_t>(end), most);
  }
  if (blocks != blocks_) current_ = nullptr;
  blocks_ = std::move(blocks);
}

/// Writes where the sequences' numbers are, unless they are those of the pass before.
bool DeviceForward::seat(std::span<const TokenRun> runs) {
  if (std::ranges::equal(seated_, runs, {}, {}, &TokenRun::cache)) return false;
  current_ = nullptr;
  seated_.clear();
  for (const TokenRun& r : runs) seated_.push_back(r.cache);
  const size_t n = runs.size();
  first_places_.assign(1, 0);
  for (int l = 0; l < config_.layers; ++l) {
    size_t calls = 0;
    for (const TokenRun& r : runs) calls = std::max(calls, r.cache->token_calls(l));
    first_places_.push_back(first_places_.back() + calls * n);
  }
  reserve_places(first_places_.back());
  for (int l = 0; l < config_.layers; ++l) {
    for (size_t i = 0; i < n; ++i) {
      const DeviceCache& cache = *runs[i].cache;
      const DecodePlace whole = place_of(cache, l, i);
      DecodePlace* place = places_.host() + first_places_[static_cast<size_t>(l)] + i;
      for (size_t call = 0; call < cache.token_calls(l); ++call)
        place[call * n] = cache.place_of_call(l, call, whole);
    }
  }
  return true;
}

/// Graphs know where places are: with new memory they are captured anew.
void DeviceForward::reserve_places(size_t count) {
  if (places_.size() >= count) return;
  MirroredArray<DecodePlace> places(memory_, MemoryKind::kScratch, count, stream_);
  passes_.clear();
  places_ = std::move(places);
}

void DeviceForward::prepare(size_t tokens, size_t calls) {
  const size_t count = static_cast<size_t>(config_.layers) * calls * tokens;
  if (places_.size() >= count) return;
  uploaded_.wait();
  seated_.clear();
  current_ = nullptr;
  reserve_places(count);
}

/// A layer's, of the pass's token `i`.
DecodePlace DeviceForward::place_of(const DeviceCache& cache, int layer, size_t i) const {
  auto* attended = reinterpret_cast<float*>(input_.data());  // [n, H, D]
  const auto width = static_cast<size_t>(config_.query_heads * config_.head_dim);
  return cache.token_place(layer, attended + i * width, q_.data() + i * width * kRowBytes);
}

void DeviceForward::forget(const DeviceCache& cache) {
  const auto among = [&](const std::vector<const DeviceCache*>& caches) {
    return std::ranges::find(caches, &cache) != caches.end();
  };
  if (among(seated_)) {
    seated_.clear();
    current_ = nullptr;
  }
  std::erase_if(passes_, [&](const Pass& p) { return among(p.caches); });
}

/// The inputs of a step's kernels, on their way. No part of a graph: the host knows when this is
/// over, and writes the next step's while the device works on this one's.
void DeviceForward::upload(std::span<const TokenRun> runs, bool seated) {
  const size_t n = runs.size(), all = static_cast<size_t>(config_.layers) * n;
  std::vector<Upload> uploads{ids_.upload_of(n),
                              angles_.upload_of(runs.front().cache->ropes().size() * n),
                              targets_.upload_of(all), states_.upload_of(n)};
  if (seated && together_) uploads.push_back(places_.upload_of(first_places_.back()));
  for (const TokenRun& r : runs)
    std::ranges::copy(r.cache->token_uploads(), std::back_inserter(uploads));
  upload_all(uploads, stream_);
  uploaded_.set(stream_);
}

bool DeviceForward::knows_kinds(std::span<const TokenRun> runs) const {
  return std::ranges::all_of(runs,
                             [&](const TokenRun& r) { return kinds_.contains(r.cache->kind()); });
}

/// The pass that those seated are in, now the latest; a new one if none is known.
DeviceForward::Pass& DeviceForward::pass_of(std::span<const TokenRun> runs) {
  const DeviceCache& any = *runs.front().cache;
  Pass pass;
  pass.form = {runs.size(), static_cast<size_t>(any.dtype()), any.ropes().size()};
  for (int l = 0; l < config_.layers; ++l) pass.form.push_back(any.rope_of(l));
  if (together_ && knows_kinds(runs)) pass.attention = attention_of(runs);
  if (pass.attention.empty()) pass.caches = seated_, pass.blocks = blocks_;
  const auto found = std::ranges::find_if(passes_, [&](const Pass& p) { return p.same_as(pass); });
  if (found == passes_.end()) {
    if (passes_.size() == kMostPasses) passes_.pop_front();
    return passes_.emplace_back(std::move(pass));
  }
  passes_.splice(passes_.end(), passes_, found);
  if (!std::ranges::equal(pass.blocks, found->blocks, std::ranges::less_equal{})) {
    found->blocks = pass.blocks;
    found->graph.reset();
  }
  return *found;
}

/// Runs the pass as a graph. The first of its kernels runs them one by one, which loads them all; a
/// capture may not.
void DeviceForward::replay(std::span<const TokenRun> runs, Pass& pass) {
  const bool loaded = pass.attention.empty() ? pass.ran : counts_.contains(runs.size());
  if (!loaded) {
    enqueue_tokens(runs, pass);
    pass.ran = true;
    counts_.insert(runs.size());
    if (!knows_kinds(runs)) current_ = nullptr;  // what their attention is can be asked now
    for (const TokenRun& r : runs) kinds_.insert(r.cache->kind());
    return;
  }
  if (!pass.graph) {
    const CapturedGraph graph = capture([&] { enqueue_tokens(runs, pass); });
    cudaGraphExec_t exec = nullptr;
    check(cudaGraphInstantiate(&exec, graph.get(), 0), "the decode graph");
    pass.graph.reset(exec);
  }
  check(cudaGraphLaunch(pass.graph.get(), stream_), "the decode graph");
}

/// The work that `work` gives the stream.
template <class Work>
DeviceForward::CapturedGraph DeviceForward::capture(const Work& work) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "the decode graph");
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph), "the decode graph");
  return CapturedGraph(graph);
}

/// A step of one token a sequence. Its arguments do not change from step to step.
void DeviceForward::enqueue_tokens(std::span<const TokenRun> runs, const Pass& pass) {
  const size_t n = runs.size();
  const DeviceCache& any = *runs.front().cache;
  const ProductRows rows = pass_rows(n);
  look_up(any, n, true);
  for (int l = 0; l < config_.layers; ++l) {
    const DeviceLayer& w = weights_->layers()[static_cast<size_t>(l)];
    const bool last = l + 1 == config_.layers;
    const MixedMatrix& after = last ? weights_->head() : (&w)[1].qkv;
    // The bias of q, k and v is the heads' business: norms and RoPE come after it.
    make_qkv(w, rows);
    HeadsCall heads = heads_call(any, l, n);
    heads.targets = targets_.device() + static_cast<size_t>(l) * n;
    make_heads(heads, stream_);
    attend_tokens(runs, pass, l);
    const void* attended = input_.data();
    if (!rows.few()) {  // queries are no longer needed
      rms_norm({q_.data(), products_, reinterpret_cast<float*>(input_.data()), nullptr, 0, n,
                static_cast<size_t>(config_.query_heads * config_.head_dim)},
               stream_);
      attended = q_.data();
    }
    add_products({&w.o, w.o_bias, w.attention_post_norm, &w.gate_up}, attended, rows);
    make_mlp(w, &after, rows);
  }
  make_logits(0, rows);
  scatter_rows(states_.device(), hidden_.data(), n, static_cast<size_t>(config_.hidden), stream_);
}

void DeviceForward::attend_tokens(std::span<const TokenRun> runs, const Pass& pass, int layer) {
  if (!pass.attention.empty())
    return DecodeGroups::run(pass.attention[static_cast<size_t>(layer)], stream_);
  DecodeGroups::run(attention_groups(runs, layer).take(), stream_);
}

/// Sequence by sequence; those of one policy will be one launch. The work that does not go by
/// groups is given to the stream.
DecodeGroups DeviceForward::attention_groups(std::span<const TokenRun> runs, int layer) {
  const DecodePlace* places = places_.device() + first_places_[static_cast<size_t>(layer)];
  DecodeGroups groups;
  for (size_t i = 0; i < runs.size(); ++i) {
    DeviceCache& cache = *runs[i].cache;
    const DecodePlace place = place_of(cache, layer, i);
    DecodeCompany company;
    if (together_) company = {&groups, places + i, runs.size(), blocks_[i]};
    groups.next_sequence();
    cache.attend_token(layer, place, attention_, company);
    if (cache.comparing()) cache.compare_token(layer, place.out, place.q);
  }
  return groups;
}

/// The launches of all layers' attention; none if some of it does not go by groups: then it is of
/// these caches alone.
std::vector<std::vector<DecodeLaunch>> DeviceForward::attention_of(std::span<const TokenRun> runs) {
  std::vector<std::vector<DecodeLaunch>> layers;
  const CapturedGraph rest = capture([&] {
    for (int l = 0; l < config_.layers; ++l) layers.push_back(attention_groups(runs, l).take());
  });
  size_t nodes = 0;
  check(cudaGraphGetNodes(rest.get(), nullptr, &nodes), "the launches of attention");
  if (nodes > 0) layers.clear();
  return layers;
}

}  // namespace pith::cuda
