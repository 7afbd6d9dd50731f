#include "tools/dictionaries/kv_rows.h"

#include <algorithm>

#include "cache/kv_cache.h"
#include "model/forward.h"
#include "model/loaders/weights.h"

namespace pith {
namespace {

constexpr size_t kChunk = 512;  // tokens of a forward pass

}  // namespace

std::optional<std::vector<KvRows>> collect_kv(const Context& context, const Model& model,
                                              std::span<const int32_t> tokens, size_t piece,
                                              const Progress& progress) {
  const ModelConfig& c = model.config();
  const LayerRopes ropes = model.weights().ropes(piece);
  const auto heads = static_cast<size_t>(c.kv_heads), dim = static_cast<size_t>(c.head_dim);
  const size_t width = heads * dim;
  std::vector<KvRows> all(static_cast<size_t>(c.layers));
  for (KvRows& layer : all) {
    layer.keys.reserve(tokens.size() * width);
    layer.values.reserve(tokens.size() * width);
  }
  Forward forward(context, model, kChunk, MatmulPrecision::kF32);
  int64_t position = 0;  // of the chunk's first token
  forward.set_observer([&](const LayerStep& step) {
    KvRows& layer = all[static_cast<size_t>(step.layer)];
    const size_t before = layer.keys.size();
    layer.keys.insert(layer.keys.end(), step.k, step.k + step.tokens * width);
    layer.values.insert(layer.values.end(), step.v, step.v + step.tokens * width);
    for (size_t i = 0; i < step.tokens * heads; ++i)
      ropes.of(step.layer)
          ->rotate(context.kernels, layer.keys.data() + before + i * dim,
                   -(position + static_cast<int64_t>(i / heads)));
  });
  const CacheShape shape{c.layers,         c.query_heads, c.kv_heads,   c.head_dim,
                         c.sliding_window, piece,         c.fingerprint};
  for (size_t first = 0; first < tokens.size(); first += piece) {
    const size_t end = std::min(tokens.size(), first + piece);
    KvCache cache(context, shape, Policy::parse("exact+f32"), 0, ropes);
    for (size_t t = first; t < end; t += kChunk) {
      position = static_cast<int64_t>(t - first);
      const size_t n = std::min(kChunk, end - t);
      forward.run(cache, tokens.subspan(t, n), position);
      if (progress && !progress(t + n, tokens.size())) return std::nullopt;
    }
  }
  return all;
}

}  // namespace pith
