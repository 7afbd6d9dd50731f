#include "model/cuda/device_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>

#include "kernels/cuda/tile_rows.h"
#include "kernels/cuda/uploads.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr size_t kFewTokens = 8;    // a chunk whose products are those of single tokens
constexpr size_t kWideUnit = 16;    // tokens
constexpr size_t kMostPasses = 16;  // that are remembered: of what is decoded in turns
constexpr size_t kLogitBytes = size_t{16} << 20;  // as on the CPU: T x V is never whole

size_t width_in(const ModelConfig& c) {
  return static_cast<size_t>(std::max({c.hidden, c.query_heads * c.head_dim, c.intermediate}));
}
/// All matrices that a pass multiplies.
void for_each_matrix(const DeviceWeights& weights, const auto& visit) {
  for (const DeviceLayer& w : weights.layers()) {
    for (const MixedMatrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) visit(*matrix);
  }
  visit(weights.head());
}
bool all_matrices(const DeviceWeights& weights, const auto& holds) {
  bool all = true;
  for_each_matrix(weights, [&](const MixedMatrix& w) { all = all && holds(w); });
  return all;
}
/// See DeviceForward::wide_.
size_t wide_rows_of(const DeviceWeights& weights, const DeviceForward::Shape& shape) {
  const auto as_they_lie = [&](const MixedMatrix& w) {
    return std::ranges::all_of(
        w.parts, [&](const MatrixPart& p) { return p.type == weight_type(shape.products); });
  };
  const bool pays =
      shape.max_tokens > 1 && shape.products != DType::kF32 && all_matrices(weights, as_they_lie);
  return pays ? (shape.max_tokens + kWideUnit - 1) / kWideUnit * kWideUnit : 0;
}
/// Whether passes have kernels of their own instead.
bool passes_are_skinny(const DeviceWeights& weights, const DeviceForward::Shape& shape) {
  return device_info().wgmma() && shape.max_tokens <= kMostSkinny &&
         wide_rows_of(weights, shape) > 0 && all_matrices(weights, [](const MixedMatrix& w) {
           return w.parts.size() == 1 && skinny_takes(w.dense(w.parts[0]));
         });
}
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
      pass_way_(passes_are_skinny(*weights_, shape) ? ProductWay::kSkinny
                : wide_ > 0                         ? ProductWay::kChunk
                                                    : ProductWay::kFew),
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
      places_(memory, MemoryKind::kScratch, static_cast<size_t>(config_.layers) * max_tokens_,
              stream),
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
  if (together_ && pass_way_ == ProductWay::kFew) {
    size_t coded = 0;
    for_each_matrix(*weights_, [&](const MixedMatrix& w) {
      coded = std::max(coded, coded_inputs_bytes(w, std::max(kFewTokens, max_tokens_)));
    });
    make(coded_, coded);
  }
  if (pass_way_ == ProductWay::kSkinny) make(parts_, kMostSkinnyParts * max_tokens_ * hidden);
  make(q_, room_ * heads * kRowBytes);
  make(cos_, ropes * room_ * half);
  make(sin_, ropes * room_ * half);
  make(logits_, block_ * static_cast<size_t>(config_.vocab));
  if (few(max_chunk_)) return;
  for_each_matrix(*weights_, [&](const MixedMatrix& w) { matmul_.reserve(products_, w); });
}

std::string DeviceForward::bits() const {
  if (!together_) return "one session";
  switch (pass_way_) {
    case ProductWay::kFew: return "many sessions in a pass";
    case ProductWay::kSkinny: return fmt::format("passes of up to {}", kMostSkinny);
    case ProductWay::kChunk: return fmt::format("passes of {}", wide_);
  }
  return {};
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

/// The start of every pass: embeddings and angles, at positions that follow each other or at
/// each token's own.
void DeviceForward::look_up(const DeviceCache& cache, size_t tokens, bool own_places) {
  pending_ = {};
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

void DeviceForward::look_up_chunk(const DeviceCache& cache, std::span<const int32_t> tokens,
                                  int64_t position) {
  uploaded_.wait();
  std::ranges::copy(tokens, ids_.host());
  *position_.host() = position;
  upload_all(std::array{ids_.upload_of(tokens.size()), position_.upload_of(1)}, stream_);
  look_up(cache, tokens.size(), false);
  uploaded_.set(stream_);
}

void DeviceForward::run_chunk(DeviceCache& cache, std::span<const int32_t> tokens,
                              int64_t first_position, float* state) {
  if (tokens.empty() || tokens.size() > max_chunk_) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a chunk of {} tokens; expected 1 to {}", tokens.size(), max_chunk_));
  }
  tokens_ = tokens.size();
  look_up_chunk(cache, tokens, first_position);
  const ProductRows n = chunk_rows(tokens_);
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
