#include "model/cuda/device_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>

#include "attend/cuda/decode_groups.h"
#include "kernels/cuda/tile_rows.h"
#include "kernels/cuda/uploads.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr size_t kFewTokens = 8;    // a chunk whose products are those of single tokens
constexpr size_t kRowBytes = 2;     // a number of exact rows and of queries
constexpr size_t kWideUnit = 16;    // tokens
constexpr size_t kMostPasses = 16;  // that are remembered: of what is decoded in turns
constexpr size_t kLogitBytes = size_t{16} << 20;  // as on the CPU: T x V is never whole

size_t width_in(const ModelConfig& c) {
  return static_cast<size_t>(std::max({c.hidden, c.query_heads * c.head_dim, c.intermediate}));
}
/// See DeviceForward::wide_.
size_t wide_rows_of(const DeviceWeights& weights, const DeviceForward::Shape& shape) {
  const auto as_they_lie = [&](const MixedMatrix& w) {
    return std::ranges::all_of(
        w.parts, [&](const MatrixPart& p) { return p.type == weight_type(shape.products); });
  };
  const bool pays = shape.max_tokens > 1 && shape.products != DType::kF32 &&
                    as_they_lie(weights.head()) &&
                    std::ranges::all_of(weights.layers(), [&](const DeviceLayer& w) {
                      return as_they_lie(w.qkv) && as_they_lie(w.o) && as_they_lie(w.gate_up) &&
                             as_they_lie(w.down);
                    });
  return pays ? (shape.max_tokens + kWideUnit - 1) / kWideUnit * kWideUnit : 0;
}
/// Blocks that a graph is captured with: as many as rows need, and an eighth for those that come.
/// More would begin and end for nothing, in each session's attention.
int with_room(int blocks) { return blocks + (blocks + 7) / 8; }
size_t qkv_width(const ModelConfig& c) {
  return static_cast<size_t>((c.query_heads + 2 * c.kv_heads) * c.head_dim);
}

}  // namespace

DeviceForward::DeviceForward(std::shared_ptr<const DeviceWeights> weights, MemoryCounter& memory,
                             cudaStream_t stream, const Shape& shape)
    : weights_(std::move(weights)),
      config_(weights_->config()),
      memory_(memory),
      stream_(stream),
      wide_(wide_rows_of(*weights_, shape)),
      max_chunk_(shape.max_chunk),
      block_(std::max(wide_, std::clamp<size_t>(
                                 kLogitBytes / (static_cast<size_t>(config_.vocab) * sizeof(float)),
                                 1, std::max(shape.max_chunk, shape.max_tokens)))),
      max_tokens_(std::min(shape.max_tokens, block_)),
      together_(shape.max_tokens > 1),
      room_(std::max({max_chunk_, max_tokens_, wide_})),
      matmul_(memory, stream),
      products_(shape.products),
      ids_(memory, MemoryKind::kScratch, room_, stream),
      position_(memory, MemoryKind::kScratch, 1, stream),
      states_(memory, MemoryKind::kScratch, max_tokens_, stream),
      places_(together_ ? static_cast<size_t>(config_.layers) * max_tokens_ : 0),
      attention_(memory, {1, config_.query_heads, config_.kv_heads, config_.head_dim, 1, 0}, stream,
                 max_tokens_),
      host_logits_(block_ * static_cast<size_t>(config_.vocab)) {
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto heads = static_cast<size_t>(config_.query_heads * config_.head_dim);
  const auto half = static_cast<size_t>(config_.head_dim) / 2;
  const auto inner = static_cast<size_t>(config_.intermediate);
  const size_t out = std::max({qkv_width(config_), 2 * inner, hidden});
  const size_t ropes = weights_->ropes(0).distinct().size();
  const auto make = [&]<class T>(DeviceArray<T>& a, size_t n) {
    a = DeviceArray<T>(memory, MemoryKind::kScratch, n, stream);
  };
  angles_ = MirroredArray<AngleSource>(memory, MemoryKind::kScratch, ropes * max_tokens_, stream);
  targets_ = MirroredArray<RowTarget>(memory, MemoryKind::kScratch,
                                      static_cast<size_t>(config_.layers) * max_tokens_, stream);
  make(hidden_, room_ * hidden);
  make(input_, room_ * width_in(config_) * sizeof(float));
  make(output_, room_ * out);
  make(update_, std::max(kFewTokens, max_tokens_) * hidden);
  make(q_, room_ * heads * kRowBytes);
  make(cos_, ropes * room_ * half);
  make(sin_, ropes * room_ * half);
  make(logits_, block_ * static_cast<size_t>(config_.vocab));
  if (few(max_chunk_)) return;
  for (const DeviceLayer& w : weights_->layers()) {
    for (const MixedMatrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down})
      matmul_.reserve(products_, *matrix);
  }
  matmul_.reserve(products_, weights_->head());
}

HeadsCall DeviceForward::heads_call(const DeviceCache& cache, int l, size_t tokens) const {
  const DeviceLayer& layer = weights_->layers()[static_cast<size_t>(l)];
  const size_t angles = cache.rope_of(l) * room_ * static_cast<size_t>(config_.head_dim) / 2;
  HeadsCall call;
  call.qkv = output_.data();
  call.bias = layer.qkv_bias;
  call.q_norm = layer.q_norm;
  call.k_norm = layer.k_norm;
  call.whole_norms = weights_->details().architecture->qk_norm == QkNorm::kWhole;
  call.factors = weights_->head_factors();
  call.rotated = static_cast<int>(weights_->details().rope.rotated);
  call.cos = cos_.data() + angles;
  call.sin = sin_.data() + angles;
  call.eps = config_.norm_eps;
  call.query_heads = config_.query_heads;
  call.kv_heads = config_.kv_heads;
  call.head_dim = config_.head_dim;
  call.tokens = tokens;
  call.dtype = cache.dtype();
  call.q = q_.data();
  return call;
}

/// What every pass starts with: embeddings and angles, at positions that follow each other or at
/// each token's own.
void DeviceForward::look_up(const DeviceCache& cache, size_t tokens, bool own_places) {
  const MixedMatrix& table = weights_->embedding();
  const MatrixPart& rows = table.parts[0];
  const float scale = weights_->details().embedding_scale;
  if (rows.tiled()) {
    pick_rows({hidden_.data(), table.tiles(rows), ids_.device(), tokens, scale}, stream_);
  } else {
    embed(
        {hidden_.data(), rows.data, *dense_type(rows.type), ids_.device(), tokens, table.in, scale},
        stream_);
  }
  const size_t half = static_cast<size_t>(config_.head_dim) / 2;
  for (size_t r = 0; r < cache.ropes().size(); ++r) {
    const size_t at = r * room_ * half;
    find_angles(
        {cos_.data() + at, sin_.data() + at, cache.ropes()[r]->device.data(), position_.device(),
         tokens, half, own_places ? angles_.device() + r * tokens : nullptr},
        stream_);
  }
}

void DeviceForward::run_tokens(std::span<const TokenRun> runs) {
  if (runs.empty() || runs.size() > max_tokens_)
    throw Error(ErrorCode::kInternal,
                fmt::format("a pass of {} tokens; expected 1 to {}", runs.size(), max_tokens_));
  tokens_ = 0;
  note(runs);
  // What is compared is no graph. The first pass of its sequences runs kernel by kernel, which
  // loads them all; a capture may not.
  const bool comparing =
      std::ranges::any_of(runs, [](const TokenRun& r) { return r.cache->comparing(); });
  Pass* pass = known(runs);
  const bool first = !pass;
  if (first) pass = &add_pass(runs);
  upload(runs);
  if (first || comparing) {
    enqueue_tokens(runs, *pass);
  } else {
    if (!pass->graph || !std::ranges::equal(blocks_, pass->blocks, std::ranges::less_equal{})) {
      for (int& blocks : blocks_) blocks = with_room(blocks);
      pass->graph = capture(runs, *pass);
      pass->blocks = blocks_;
    }
    check(cudaGraphLaunch(pass->graph.get(), stream_), "the decode graph");
  }
}

/// What the pass's kernels read beside the caches' own and the pass's places.
void DeviceForward::note(std::span<const TokenRun> runs) {
  const size_t n = runs.size();
  blocks_.assign(n, 0);
  for (size_t i = 0; i < n; ++i) {
    const DeviceCache& cache = *runs[i].cache;
    if (together_) blocks_[i] = std::min(cache.token_blocks(), attention_.blocks());
    ids_.host()[i] = runs[i].token;
    states_.host()[i] = runs[i].state;
    for (size_t r = 0; r < cache.ropes().size(); ++r)
      angles_.host()[r * n + i] = {cache.ropes()[r]->device.data(), runs[i].position};
    for (int l = 0; l < config_.layers; ++l)
      targets_.host()[static_cast<size_t>(l) * n + i] = cache.token_target(l);
  }
}

/// The pass of these sequences, now the latest; null if it is new.
DeviceForward::Pass* DeviceForward::known(std::span<const TokenRun> runs) {
  const auto same = [&](const Pass& p) {
    return std::ranges::equal(p.caches, runs, {}, {}, &TokenRun::cache);
  };
  const auto found = std::ranges::find_if(passes_, same);
  if (found != passes_.end()) {
    std::rotate(found, found + 1, passes_.end());
    return &passes_.back();
  }
  return nullptr;
}

/// Where its sequences' numbers are changes with the pass alone: the device is told once.
DeviceForward::Pass& DeviceForward::add_pass(std::span<const TokenRun> runs) {
  Pass pass;
  const size_t n = runs.size();
  auto* attended = reinterpret_cast<float*>(input_.data());  // [n, H, D]
  const auto width = static_cast<size_t>(config_.query_heads * config_.head_dim);
  for (const TokenRun& r : runs) pass.caches.push_back(r.cache);
  for (int l = 0; l < config_.layers; ++l) {
    for (size_t i = 0; i < n; ++i) {
      pass.places.push_back(
          runs[i].cache->token_place(l, attended + i * width, q_.data() + i * width * kRowBytes));
    }
  }
  if (together_) {
    pass.on_device = {memory_, MemoryKind::kScratch, pass.places.size(), stream_};
    std::ranges::copy(pass.places, places_.data());
    pass.on_device.upload(places_.data(), pass.places.size(), stream_);
  }
  if (passes_.size() == kMostPasses) passes_.erase(passes_.begin());
  return passes_.emplace_back(std::move(pass));
}

void DeviceForward::forget(const DeviceCache& cache) {
  std::erase_if(passes_, [&](const Pass& p) {
    return std::ranges::find(p.caches, &cache) != p.caches.end();
  });
}

DeviceForward::Graph DeviceForward::capture(std::span<const TokenRun> runs, const Pass& pass) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "the decode graph");
  try {
    enqueue_tokens(runs, pass);
  } catch (...) {
    cudaStreamEndCapture(stream_, &graph);
    if (graph) cudaGraphDestroy(graph);
    throw;
  }
  check(cudaStreamEndCapture(stream_, &graph), "the decode graph");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  check(status, "the decode graph");
  return Graph(exec);
}

/// What a step's kernels read, on its way. No part of a graph: the host knows when this is over,
/// and writes the next step's while the device works on this one's.
void DeviceForward::upload(std::span<const TokenRun> runs) {
  const size_t n = runs.size();
  std::vector<Upload> uploads{
      ids_.upload_of(n), angles_.upload_of(runs.front().cache->ropes().size() * n),
      targets_.upload_of(static_cast<size_t>(config_.layers) * n), states_.upload_of(n)};
  for (const TokenRun& r : runs)
    std::ranges::copy(r.cache->token_uploads(), std::back_inserter(uploads));
  upload_all(uploads, stream_);
  uploaded_.set(stream_);
}

/// A step of one token a sequence. Its arguments do not change from step to step.
void DeviceForward::enqueue_tokens(std::span<const TokenRun> runs, const Pass& pass) {
  const size_t n = runs.size();
  const DeviceCache& any = *runs.front().cache;
  look_up(any, n, true);
  for (int l = 0; l < config_.layers; ++l) {
    const DeviceLayer& w = weights_->layers()[static_cast<size_t>(l)];
    const bool last = l + 1 == config_.layers;
    const MixedMatrix& after = last ? weights_->head() : (&w)[1].qkv;
    // The bias of q, k and v is the heads' business: norms and RoPE come after it.
    make_qkv(w, {n, wide_});
    HeadsCall heads = heads_call(any, l, n);
    heads.targets = targets_.device() + static_cast<size_t>(l) * n;
    make_heads(heads, stream_);
    attend_tokens(runs, pass, l);
    const void* attended = input_.data();
    if (wide_ > 0) {  // queries are no longer needed
      rms_norm({q_.data(), products_, reinterpret_cast<const float*>(attended), nullptr, 0, n,
                static_cast<size_t>(config_.query_heads * config_.head_dim)},
               stream_);
      attended = q_.data();
    }
    add_products({&w.o, w.o_bias, w.attention_post_norm, &w.gate_up}, attended, {n, wide_});
    make_mlp(w, &after, {n, wide_});
  }
  make_logits(0, {n, wide_});
  scatter_rows(states_.device(), hidden_.data(), n, static_cast<size_t>(config_.hidden), stream_);
}

/// Sequence by sequence, or those of one policy in one launch.
void DeviceForward::attend_tokens(std::span<const TokenRun> runs, const Pass& pass, int layer) {
  const size_t first = static_cast<size_t>(layer) * runs.size();
  DecodeGroups groups;
  for (size_t i = 0; i < runs.size(); ++i) {
    DeviceCache& cache = *runs[i].cache;
    const DecodePlace& place = pass.places[first + i];
    DecodeCompany company;
    if (together_) company = {&groups, pass.on_device.data() + first + i, blocks_[i]};
    groups.next_sequence();
    cache.attend_token(layer, place, attention_, company);
    if (cache.comparing()) cache.compare_token(layer, place.out, place.q);
  }
  groups.run(stream_);
}

void DeviceForward::run_chunk(DeviceCache& cache, std::span<const int32_t> tokens,
                              int64_t first_position, float* state) {
  if (tokens.empty() || tokens.size() > max_chunk_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a chunk of {} tokens; expected 1 to {}", tokens.size(), max_chunk_));
  }
  tokens_ = tokens.size();
  uploaded_.wait();
  std::copy(tokens.begin(), tokens.end(), ids_.host());
  *position_.host() = first_position;
  upload_all(std::array{ids_.upload_of(tokens_), position_.upload_of(1)}, stream_);
  look_up(cache, tokens_, false);
  uploaded_.set(stream_);
  const ProductRows n{tokens_, few(tokens_) ? 0 : tokens_};
  for (int l = 0; l < config_.layers; ++l) {
    attention_of_chunk(cache, l, n);
    make_mlp(weights_->layers()[static_cast<size_t>(l)], nullptr, n);
  }
  const auto width = static_cast<size_t>(config_.hidden);
  check(cudaMemcpyAsync(state, hidden_.data() + (tokens_ - 1) * width, width * sizeof(float),
                        cudaMemcpyDeviceToDevice, stream_),
        "where a chunk left off");
}

bool DeviceForward::few(size_t tokens) const {
  return tokens == 1 || (tokens <= kFewTokens && weights_->tiled());
}

void DeviceForward::attention_of_chunk(DeviceCache& cache, int layer, const ProductRows& n) {
  const DeviceLayer& w = weights_->layers()[static_cast<size_t>(layer)];
  make_qkv(w, n);
  HeadsCall heads = heads_call(cache, layer, n.tokens);
  heads.target = cache.begin_chunk(layer, n.tokens);
  make_heads(heads, stream_);
  cache.attend_chunk(layer, input_.data(), n.few() ? DType::kF32 : products_, q_.data(), n.tokens);
  cache.end_chunk(layer, n.tokens);
  add_products({&w.o, w.o_bias, w.attention_post_norm}, input_.data(), n);
}

}  // namespace pith::cuda
