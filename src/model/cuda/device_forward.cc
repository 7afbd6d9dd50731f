#include "model/cuda/device_forward.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/cuda/tile_rows.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr size_t kFewTokens = 8;  // a chunk whose products are those of single tokens
constexpr size_t kLogitBytes = size_t{16} << 20;  // as on the CPU: T x V is never whole

size_t width_in(const ModelConfig& c) {
  return static_cast<size_t>(std::max({c.hidden, c.query_heads * c.head_dim, c.intermediate}));
}
size_t qkv_width(const ModelConfig& c) {
  return static_cast<size_t>((c.query_heads + 2 * c.kv_heads) * c.head_dim);
}

void refuse_unless_finite(bool finite) {
  if (finite) return;
  throw Error(ErrorCode::kNonFinite,
              "the model's logits are NaN or infinite: its weights are damaged, or activations "
              "left the range of the weights' type");
}

}  // namespace

DeviceForward::DeviceForward(std::shared_ptr<const DeviceWeights> weights, MemoryCounter& memory,
                             cudaStream_t stream, size_t max_chunk, const Types& types)
    : weights_(std::move(weights)),
      config_(weights_->config()),
      memory_(memory),
      stream_(stream),
      max_chunk_(max_chunk),
      block_(std::clamp<size_t>(kLogitBytes / (static_cast<size_t>(config_.vocab) * sizeof(float)),
                                1, max_chunk)),
      matmul_(memory, stream),
      ids_(memory, MemoryKind::kScratch, max_chunk, stream),
      position_(memory, MemoryKind::kScratch, 1, stream),
      host_logits_(block_ * static_cast<size_t>(config_.vocab)),
      types_(types) {
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto heads = static_cast<size_t>(config_.query_heads * config_.head_dim);
  const auto half = static_cast<size_t>(config_.head_dim) / 2;
  const auto inner = static_cast<size_t>(config_.intermediate);
  const size_t out = std::max({qkv_width(config_), 2 * inner, hidden});
  const auto make = [&]<class T>(DeviceArray<T>& a, size_t n) {
    a = DeviceArray<T>(memory, MemoryKind::kScratch, n, stream);
  };
  make(hidden_, max_chunk * hidden);
  make(input_, max_chunk * width_in(config_) * sizeof(float));
  make(output_, max_chunk * out);
  make(update_, kFewTokens * hidden);
  make(q_, max_chunk * heads * size_of(types.rows));
  const size_t ropes = weights_->ropes(0).distinct().size();
  make(cos_, ropes * max_chunk * half);
  make(sin_, ropes * max_chunk * half);
  make(logits_, block_ * static_cast<size_t>(config_.vocab));
  if (few(max_chunk)) return;
  for (const DeviceLayer& w : weights_->layers()) {
    for (const MixedMatrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down})
      matmul_.reserve(types_.products, *matrix);
  }
  matmul_.reserve(types_.products, weights_->head());
}

void DeviceForward::run(DeviceCache& cache, std::span<const int32_t> tokens,
                        int64_t first_position) {
  if (tokens.empty() || tokens.size() > max_chunk_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a chunk of {} tokens; expected 1 to {}", tokens.size(), max_chunk_));
  }
  tokens_ = tokens.size();
  has_logits_ = false;
  uploaded_.wait();
  std::copy(tokens.begin(), tokens.end(), ids_.host());
  *position_.host() = first_position;
  if (tokens_ == 1) {
    run_token(cache);
  } else {
    run_chunk(cache);
  }
}

HeadsCall DeviceForward::heads_call(const DeviceCache& cache, int l, size_t tokens) const {
  const DeviceLayer& layer = weights_->layers()[static_cast<size_t>(l)];
  const size_t angles = cache.rope_of(l) * max_chunk_ * static_cast<size_t>(config_.head_dim) / 2;
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
  call.dtype = types_.rows;
  call.q = q_.data();
  return call;
}

/// What every chunk starts with.
void DeviceForward::begin(const DeviceCache& cache, size_t tokens) {
  ids_.upload(tokens, stream_);
  position_.upload(1, stream_);
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
    const size_t at = r * max_chunk_ * half;
    find_angles({cos_.data() + at, sin_.data() + at, cache.ropes()[r]->device.data(),
                 position_.device(), tokens, half},
                stream_);
  }
}

void DeviceForward::run_token(DeviceCache& cache) {
  cache.begin_token();
  // The first token runs kernel by kernel, which loads them all; a capture may not. So do tokens
  // that are compared.
  if (graph_of_ != &cache) {
    graph_.reset();
    graph_of_ = &cache;
    enqueue_token(cache);
  } else if (cache.comparing()) {
    enqueue_token(cache);
  } else {
    if (!graph_) capture(cache);
    check(cudaGraphLaunch(graph_.get(), stream_), "the decode graph");
  }
  uploaded_.set(stream_);
  has_logits_ = true;
  cache.end_token();
}

void DeviceForward::capture(DeviceCache& cache) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "the decode graph");
  try {
    enqueue_token(cache);
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
  graph_.reset(exec);
}

/// A step of one token. Its arguments do not change from step to step.
void DeviceForward::enqueue_token(DeviceCache& cache) {
  cache.upload_token();
  begin(cache, 1);
  auto* attended = reinterpret_cast<float*>(input_.data());  // [H, D]
  for (int l = 0; l < config_.layers; ++l) {
    const DeviceLayer& w = weights_->layers()[static_cast<size_t>(l)];
    const bool last = l + 1 == config_.layers;
    const MixedMatrix& after = last ? weights_->head() : (&w)[1].qkv;
    // The bias of q, k and v is the heads' business: norms and RoPE come after it.
    qkv_of_few(w, 1);
    HeadsCall heads = heads_call(cache, l, 1);
    heads.target_on_device = cache.token_target(l);
    make_heads(heads, stream_);
    cache.attend_token(l, attended, q_.data());
    if (cache.comparing()) cache.compare_token(l, attended, q_.data());
    add_few({&w.o, w.o_bias, w.attention_post_norm, &w.gate_up}, 1);
    gate_few(w, 1);
    add_few({&w.down, w.down_bias, w.mlp_post_norm, &after}, 1);
  }
  make_logits(0, 1);
}

void DeviceForward::run_chunk(DeviceCache& cache) {
  begin(cache, tokens_);
  uploaded_.set(stream_);
  for (int l = 0; l < config_.layers; ++l) {
    attention_of_chunk(cache, l);
    mlp_of_chunk(weights_->layers()[static_cast<size_t>(l)]);
  }
}

bool DeviceForward::few(size_t tokens) const {
  return tokens == 1 || (tokens <= kFewTokens && weights_->tiled());
}

/// input <- normalised rows [first, first + count) of the residual stream.
void DeviceForward::normalise(const float* weight, size_t first, size_t count) {
  const auto width = static_cast<size_t>(config_.hidden);
  rms_norm({input_.data(), types_.products, hidden_.data() + first * width, weight,
            config_.norm_eps, count, width},
           stream_);
}

void DeviceForward::attention_of_chunk(DeviceCache& cache, int layer) {
  const DeviceLayer& w = weights_->layers()[static_cast<size_t>(layer)];
  if (few(tokens_)) {
    qkv_of_few(w, tokens_);
  } else {
    normalise(w.attention_norm, 0, tokens_);
    matmul_.run(output_.data(), input_.data(), types_.products, w.qkv, tokens_, false);
  }
  HeadsCall heads = heads_call(cache, layer, tokens_);
  heads.target = cache.begin_chunk(layer, tokens_);
  make_heads(heads, stream_);
  cache.attend_chunk(layer, input_.data(), input_type(), q_.data(), tokens_);
  cache.end_chunk(layer, tokens_);
  add_products({&w.o, w.o_bias, w.attention_post_norm});
}

void DeviceForward::mlp_of_chunk(const DeviceLayer& w) {
  if (few(tokens_)) {
    gate_few(w, tokens_);
  } else {
    const bool gelu = weights_->details().activation == Activation::kGeluTanh;
    normalise(w.mlp_norm, 0, tokens_);
    matmul_.run(output_.data(), input_.data(), types_.products, w.gate_up, tokens_, false);
    gate({input_.data(), types_.products, output_.data(), w.gate_up_bias, tokens_,
          static_cast<size_t>(config_.intermediate), gelu ? GateKind::kGeluTanh : GateKind::kSilu},
         stream_);
  }
  add_products({&w.down, w.down_bias, w.mlp_post_norm});
}

/// Queries, keys and values of a few tokens, into output_.
void DeviceForward::qkv_of_few(const DeviceLayer& w, size_t tokens) {
  few_tokens({.y = output_.data(),
              .w = &w.qkv,
              .x = hidden_.data(),
              .norm = w.attention_norm,
              .eps = config_.norm_eps,
              .tokens = tokens,
              .next = &w.o},
             stream_);
}

/// The MLP's gated numbers [tokens, inner] of a few tokens, f32, into input_.
void DeviceForward::gate_few(const DeviceLayer& w, size_t tokens) {
  const bool gelu = weights_->details().activation == Activation::kGeluTanh;
  auto* inner = reinterpret_cast<float*>(input_.data());
  FewTokensCall call{.y = inner,
                     .w = &w.gate_up,
                     .x = hidden_.data(),
                     .norm = w.mlp_norm,
                     .eps = config_.norm_eps,
                     .bias = w.gate_up_bias,
                     .end = gelu ? MatvecEnd::kGelu : MatvecEnd::kGate,
                     .tokens = tokens,
                     .next = &w.down};
  if (w.gate_up.gate_fuses()) return few_tokens(call, stream_);
  call.y = output_.data();
  call.bias = nullptr;
  call.end = MatvecEnd::kStore;
  few_tokens(call, stream_);
  gate({inner, DType::kF32, output_.data(), w.gate_up_bias, tokens,
        static_cast<size_t>(config_.intermediate), gelu ? GateKind::kGeluTanh : GateKind::kSilu},
       stream_);
}

/// The residual stream of a few tokens takes what is added, x being what lies in input_ as f32.
void DeviceForward::add_few(const Added& added, size_t tokens) {
  FewTokensCall call{.y = hidden_.data(),
                     .w = added.w,
                     .x = reinterpret_cast<const float*>(input_.data()),
                     .bias = added.bias,
                     .end = MatvecEnd::kAdd,
                     .tokens = tokens,
                     .next = added.next};
  if (!added.norm) return few_tokens(call, stream_);
  call.y = update_.data();
  call.end = MatvecEnd::kStore;
  few_tokens(call, stream_);
  add_normed(
      {hidden_.data(), update_.data(), nullptr, added.norm, config_.norm_eps, tokens, added.w->out},
      stream_);
}

/// The same of a chunk.
void DeviceForward::add_products(const Added& added) {
  if (few(tokens_)) return add_few(added, tokens_);
  const auto width = static_cast<size_t>(config_.hidden);
  if (added.norm) {
    matmul_.run(output_.data(), input_.data(), types_.products, *added.w, tokens_, false);
    add_normed(
        {hidden_.data(), output_.data(), added.bias, added.norm, config_.norm_eps, tokens_, width},
        stream_);
    return;
  }
  matmul_.run(hidden_.data(), input_.data(), types_.products, *added.w, tokens_, true);
  if (added.bias) add_bias(hidden_.data(), added.bias, tokens_, width, stream_);
}

/// Logits of tokens [first, first + count) of the chunk, into the block's first rows.
void DeviceForward::make_logits(size_t first, size_t count) {
  if (few(count)) {
    few_tokens({.y = logits_.data(),
                .w = &weights_->head(),
                .x = hidden_.data() + first * static_cast<size_t>(config_.hidden),
                .norm = weights_->final_norm(),
                .eps = config_.norm_eps,
                .tokens = count,
                .next = &weights_->layers().front().qkv},
               stream_);
  } else {
    normalise(weights_->final_norm(), first, count);
    matmul_.run(logits_.data(), input_.data(), types_.products, weights_->head(), count, false);
  }
}

const float* DeviceForward::fetch_logits(size_t count) {
  const size_t numbers = count * static_cast<size_t>(config_.vocab);
  logits_.download(host_logits_.data(), numbers, stream_);
  check(cudaStreamSynchronize(stream_), "the forward pass");
  refuse_unless_finite(!has_non_finite(host_logits_.data(), DType::kF32, numbers));
  return host_logits_.data();
}

void DeviceForward::make_last_logits() {
  if (tokens_ == 0) throw Error(ErrorCode::kInternal, "logits before any token");
  if (!has_logits_) make_logits(tokens_ - 1, 1);
  has_logits_ = true;
}

std::span<const RankedLogit> DeviceForward::best_logits(RankingCall call) {
  make_last_logits();
  if (!ranking_) ranking_.emplace(memory_, static_cast<size_t>(config_.vocab), stream_);
  call.logits = logits_.data();
  bool finite = false;
  const auto best = ranking_->rank(call, finite);
  refuse_unless_finite(finite);
  return best;
}

std::span<const float> DeviceForward::last_logits() {
  make_last_logits();
  return {fetch_logits(1), static_cast<size_t>(config_.vocab)};
}

void DeviceForward::continue_from(const DeviceForward& other) {
  tokens_ = std::min<size_t>(other.tokens_, 1);
  has_logits_ = false;
  if (tokens_ == 0) return;
  const auto hidden = static_cast<size_t>(config_.hidden);
  check(cudaMemcpyAsync(hidden_.data(), other.hidden_.data() + (other.tokens_ - 1) * hidden,
                        hidden * sizeof(float), cudaMemcpyDeviceToDevice, stream_),
        "the copy of a fork's last token");
}

void DeviceForward::all_logits(const Sink& sink) {
  if (tokens_ == 1) return sink(0, 1, last_logits().data());
  has_logits_ = false;
  for (size_t first = 0; first < tokens_; first += block_) {
    const size_t count = std::min(block_, tokens_ - first);
    make_logits(first, count);
    sink(first, count, fetch_logits(count));
  }
}

}  // namespace pith::cuda
