#include "model/cuda/device_heads.h"

#include <algorithm>
#include <array>

#include "kernels/cuda/tile_rows.h"
#include "kernels/cuda/uploads.h"

namespace pith::cuda {

DeviceHeads::DeviceHeads(std::shared_ptr<const DeviceWeights> weights, const ProductPlan& plan,
                         DeviceProducts& products, MemoryCounter& memory, cudaStream_t stream)
    : weights_(std::move(weights)),
      config_(weights_->config()),
      plan_(plan),
      products_(products),
      stream_(stream),
      ids_(memory, MemoryKind::kScratch, plan.room(), stream),
      position_(memory, MemoryKind::kScratch, 1, stream) {
  const auto queries = static_cast<size_t>(config_.query_heads * config_.head_dim);
  const auto half = static_cast<size_t>(config_.head_dim) / 2;
  const size_t ropes = weights_->ropes(0).distinct().size();
  const auto make = [&]<class T>(DeviceArray<T>& a, size_t n) {
    a = DeviceArray<T>(memory, MemoryKind::kScratch, n, stream);
  };
  angles_ =
      MirroredArray<AngleSource>(memory, MemoryKind::kScratch, ropes * plan.max_tokens(), stream);
  make(q_, plan.room() * queries * kRowBytes);
  make(cos_, ropes * plan.room() * half);
  make(sin_, ropes * plan.room() * half);
}

HeadsCall DeviceHeads::heads_call(const DeviceCache& cache, int l, size_t tokens) const {
  const DeviceLayer& layer = weights_->layers()[static_cast<size_t>(l)];
  HeadsCall call;
  call.qkv = products_.output();
  call.bias = layer.qkv_bias;
  call.q_norm = layer.q_norm;
  call.k_norm = layer.k_norm;
  call.whole_norms = weights_->details().architecture->qk_norm == QkNorm::kWhole;
  call.factors = weights_->head_factors();
  call.rotated = static_cast<int>(weights_->details().rope.rotated);
  call.cos = cos(cache.rope_of(l));
  call.sin = sin(cache.rope_of(l));
  call.eps = config_.norm_eps;
  call.query_heads = config_.query_heads;
  call.kv_heads = config_.kv_heads;
  call.head_dim = config_.head_dim;
  call.tokens = tokens;
  call.dtype = cache.dtype();
  call.q = q_.data();
  return call;
}

void DeviceHeads::look_up(const DeviceCache& cache, size_t tokens, bool own_places) {
  products_.begin();
  const MixedMatrix& table = weights_->embedding();
  const MatrixPart& rows = table.parts[0];
  const float scale = weights_->details().embedding_scale;
  if (rows.tiled()) {
    pick_rows({products_.hidden(), table.tiles(rows), ids_.device(), tokens, scale}, stream_);
  } else {
    embed({products_.hidden(), rows.data, *dense_type(rows.type), ids_.device(), tokens, table.in,
           scale},
          stream_);
  }
  const size_t half = static_cast<size_t>(config_.head_dim) / 2;
  for (size_t r = 0; r < cache.ropes().size(); ++r) {
    find_angles({cos(r), sin(r), cache.ropes()[r]->device.data(), position_.device(), tokens, half,
                 own_places ? angles_.device() + r * tokens : nullptr},
                stream_);
  }
}

void DeviceHeads::look_up_chunk(const DeviceCache& cache, std::span<const int32_t> tokens,
                                int64_t position) {
  uploaded_.wait();
  std::ranges::copy(tokens, ids_.host());
  *position_.host() = position;
  upload_all(std::array{ids_.upload_of(tokens.size()), position_.upload_of(1)}, stream_);
  look_up(cache, tokens.size(), false);
  uploaded_.set(stream_);
}

}  // namespace pith::cuda
