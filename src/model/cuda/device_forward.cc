#include "model/cuda/device_forward.h"

#include <fmt/format.h>

#include <algorithm>

#include "pith/error.h"

namespace pith::cuda {
namespace {

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
                             cudaStream_t stream, size_t max_chunk, DType rows)
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
      row_dtype_(rows) {
  const auto hidden = static_cast<size_t>(config_.hidden);
  const auto heads = static_cast<size_t>(config_.query_heads * config_.head_dim);
  const auto half = static_cast<size_t>(config_.head_dim) / 2;
  const auto inner = static_cast<size_t>(config_.intermediate);
  const size_t out = std::max(qkv_width(config_), 2 * inner);
  const auto make = [&]<class T>(DeviceArray<T>& a, size_t n) {
    a = DeviceArray<T>(memory, MemoryKind::kScratch, n, stream);
  };
  make(hidden_, max_chunk * hidden);
  make(input_, max_chunk * width_in(config_) * std::max<size_t>(4, size_of(weights_->dtype())));
  make(output_, max_chunk * out);
  make(q_, max_chunk * heads * size_of(rows));
  make(cos_, max_chunk * half);
  make(sin_, max_chunk * half);
  make(logits_, block_ * static_cast<size_t>(config_.vocab));
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

HeadsCall DeviceForward::heads_call(const DeviceLayer& layer, size_t tokens) const {
  HeadsCall call;
  call.qkv = output_.data();
  call.bias = layer.qkv_bias;
  call.q_norm = layer.q_norm;
  call.k_norm = layer.k_norm;
  call.cos = cos_.data();
  call.sin = sin_.data();
  call.eps = config_.norm_eps;
  call.query_heads = config_.query_heads;
  call.kv_heads = config_.kv_heads;
  call.head_dim = config_.head_dim;
  call.tokens = tokens;
  call.dtype = row_dtype_;
  call.q = q_.data();
  return call;
}

/// What every chunk starts with.
void DeviceForward::begin(size_t tokens) {
  ids_.upload(tokens, stream_);
  position_.upload(1, stream_);
  embed({hidden_.data(), weights_->embedding().data, weights_->dtype(), ids_.device(), tokens,
         static_cast<size_t>(config_.hidden)},
        stream_);
  find_angles({cos_.data(), sin_.data(), weights_->frequencies(), position_.device(), tokens,
               static_cast<size_t>(config_.head_dim) / 2},
              stream_);
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
  begin(1);
  auto* attended = reinterpret_cast<float*>(input_.data());  // [H, D]
  float *hidden = hidden_.data(), *out = output_.data();
  const float eps = config_.norm_eps;
  for (int l = 0; l < config_.layers; ++l) {
    const DeviceLayer& w = weights_->layers()[static_cast<size_t>(l)];
    // The bias of q, k and v is the heads' business: norms and RoPE come after it.
    matvec({out, w.qkv, hidden, w.attention_norm, eps, nullptr, MatvecEnd::kStore}, stream_);
    HeadsCall heads = heads_call(w, 1);
    heads.target_on_device = cache.token_target(l);
    make_heads(heads, stream_);
    cache.attend_token(l, attended, q_.data());
    if (cache.comparing()) cache.compare_token(l, attended, q_.data());
    matvec({hidden, w.o, attended, nullptr, 0, w.o_bias, MatvecEnd::kAdd}, stream_);
    matvec({out, w.gate_up, hidden, w.mlp_norm, eps, w.gate_up_bias, MatvecEnd::kGate}, stream_);
    matvec({hidden, w.down, out, nullptr, 0, w.down_bias, MatvecEnd::kAdd}, stream_);
  }
  matvec(head_call(0), stream_);
}

void DeviceForward::run_chunk(DeviceCache& cache) {
  begin(tokens_);
  uploaded_.set(stream_);
  for (int l = 0; l < config_.layers; ++l) {
    attention_of_chunk(cache, l);
    mlp_of_chunk(weights_->layers()[static_cast<size_t>(l)]);
  }
}

/// input <- normalised rows [first, first + count) of the residual stream.
void DeviceForward::normalise(const float* weight, size_t first, size_t count) {
  const auto width = static_cast<size_t>(config_.hidden);
  rms_norm({input_.data(), weights_->dtype(), hidden_.data() + first * width, weight,
            config_.norm_eps, count, width},
           stream_);
}

void DeviceForward::attention_of_chunk(DeviceCache& cache, int layer) {
  const DeviceLayer& w = weights_->layers()[static_cast<size_t>(layer)];
  normalise(w.attention_norm, 0, tokens_);
  matmul_.run(output_.data(), input_.data(), w.qkv, tokens_, false);
  HeadsCall heads = heads_call(w, tokens_);
  heads.target = cache.begin_chunk(layer, tokens_);
  make_heads(heads, stream_);
  cache.attend_chunk(layer, input_.data(), weights_->dtype(), q_.data(), tokens_);
  cache.end_chunk(layer, tokens_);
  matmul_.run(hidden_.data(), input_.data(), w.o, tokens_, true);
  add_bias_if_any(w.o_bias);
}

void DeviceForward::mlp_of_chunk(const DeviceLayer& w) {
  normalise(w.mlp_norm, 0, tokens_);
  matmul_.run(output_.data(), input_.data(), w.gate_up, tokens_, false);
  gate({input_.data(), weights_->dtype(), output_.data(), w.gate_up_bias, tokens_,
        static_cast<size_t>(config_.intermediate)},
       stream_);
  matmul_.run(hidden_.data(), input_.data(), w.down, tokens_, true);
  add_bias_if_any(w.down_bias);
}

void DeviceForward::add_bias_if_any(const float* bias) {
  if (bias) {
    add_bias(hidden_.data(), bias, tokens_, static_cast<size_t>(config_.hidden), stream_);
  }
}

/// The logits of one token into the first row of the block.
MatvecCall DeviceForward::head_call(size_t token) const {
  return {logits_.data(),
          weights_->head(),
          hidden_.data() + token * static_cast<size_t>(config_.hidden),
          weights_->final_norm(),
          config_.norm_eps,
          nullptr,
          MatvecEnd::kStore};
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
  if (!has_logits_) matvec(head_call(tokens_ - 1), stream_);
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

void DeviceForward::all_logits(const Sink& sink) {
  if (tokens_ == 1) return sink(0, 1, last_logits().data());
  has_logits_ = false;
  for (size_t first = 0; first < tokens_; first += block_) {
    const size_t count = std::min(block_, tokens_ - first);
    normalise(weights_->final_norm(), first, count);
    matmul_.run(logits_.data(), input_.data(), weights_->head(), count, false);
    sink(first, count, fetch_logits(count));
  }
}

}  // namespace pith::cuda
