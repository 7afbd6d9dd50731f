#include "model/loaders/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/dtype.h"
#include "model/loaders/gguf_model.h"
#include "pith/error.h"

namespace pith {
namespace {

/// Hands out the tensors by name and remembers which were asked for.
class Taker {
 public:
  explicit Taker(const ModelTensors& file) : file_(file) {}

  WeightMatrix matrix(const std::string& name, size_t out, size_t in) {
    const ModelTensor& t = take(name, {out, in});
    return {t.data, t.weights(), out, in};
  }
  /// Rows [first, first + out) of a matrix of `rows` rows.
  WeightMatrix part(const std::string& name, size_t rows, size_t in, size_t first, size_t out) {
    const WeightMatrix whole = matrix(name, rows, in);
    return {whole.row(first), whole.type, out, in};
  }
  /// The factors of a norm; empty without a name.
  std::vector<float> norm(const std::string& prefix, const char* name, size_t count, float offset) {
    if (!name) return {};
    std::vector<float> weight = vector(prefix + name + ".weight", count);
    if (offset != 0) {
      for (float& w : weight) w += offset;
    }
    return weight;
  }
  std::vector<float> vector(const std::string& name, size_t count) {
    const ModelTensor& t = take(name, {count});
    std::vector<float> out(count);
    const auto* wide = reinterpret_cast<const float*>(t.data);
    const auto* narrow = reinterpret_cast<const uint16_t*>(t.data);
    switch (t.dense()) {
      case DType::kF32: std::copy(wide, wide + count, out.begin()); break;
      case DType::kF16: std::transform(narrow, narrow + count, out.begin(), f16_to_f32); break;
      case DType::kBF16: std::transform(narrow, narrow + count, out.begin(), bf16_to_f32); break;
    }
    return out;
  }
  Linear linear(const std::string& name, size_t out, size_t in, bool bias) {
    Linear linear{.w = matrix(name + ".weight", out, in), .bias = {}};
    if (bias) linear.bias = vector(name + ".bias", out);
    return linear;
  }
  bool has(std::string_view name) const { return file_.find(name) != nullptr; }
  void ignore(const std::string& name) { taken_.insert(name); }
  size_t bytes() const { return bytes_; }

  /// A tensor that nobody asked for may change what the model computes.
  void refuse_leftovers() const {
    for (const auto& [name, tensor] : file_.tensors()) {
      const bool harmless = name.ends_with(".rotary_emb.inv_freq");  // a table that we make
      if (taken_.count(name) != 0 || harmless) continue;
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: tensor '{}' {} has no place in this architecture; {} and the "
                              "tensors do not belong together, or the model is a variant that is "
                              "not supported",
                              tensor.file, tensor.name, tensor.shape_text(), file_.shapes_from()));
    }
  }

 private:
  const ModelTensor& take(const std::string& name, const std::vector<size_t>& shape) {
    const ModelTensor& t = file_.at(name);
    if (t.shape != shape) {
      ModelTensor expected;
      expected.shape = shape;
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("{}: tensor '{}' has shape {}; by {} it is {}", t.file, t.name,
                              t.shape_text(), file_.shapes_from(), expected.shape_text()));
    }
    if (taken_.insert(name).second) bytes_ += t.bytes;
    return t;
  }

  const ModelTensors& file_;
  std::set<std::string> taken_;
  size_t bytes_ = 0;
};

LayerWeights take_layer(Taker& taker, const ConfigFile& config, size_t layer) {
  const ModelConfig& c = config.model;
  const auto hidden = static_cast<size_t>(c.hidden);
  const auto inner = static_cast<size_t>(c.intermediate);
  const auto dim = static_cast<size_t>(c.head_dim);
  const size_t query_width = static_cast<size_t>(c.query_heads) * dim;
  const size_t kv_width = static_cast<size_t>(c.kv_heads) * dim;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  const Architecture& a = *config.architecture;

  LayerWeights w;
  w.attention_norm = taker.norm(prefix, a.attention_norm, hidden, a.norm_offset);
  w.attention_post_norm = taker.norm(prefix, a.attention_post_norm, hidden, a.norm_offset);
  w.mlp_norm = taker.norm(prefix, a.mlp_norm, hidden, a.norm_offset);
  w.mlp_post_norm = taker.norm(prefix, a.mlp_post_norm, hidden, a.norm_offset);
  if (a.fused) {
    const std::string qkv = attention + "qkv_proj.weight", gate_up = mlp + "gate_up_proj.weight";
    const size_t rows = query_width + 2 * kv_width;
    w.q.w = taker.part(qkv, rows, hidden, 0, query_width);
    w.k.w = taker.part(qkv, rows, hidden, query_width, kv_width);
    w.v.w = taker.part(qkv, rows, hidden, query_width + kv_width, kv_width);
    w.gate.w = taker.part(gate_up, 2 * inner, hidden, 0, inner);
    w.up.w = taker.part(gate_up, 2 * inner, hidden, inner, inner);
  } else {
    w.q = taker.linear(attention + "q_proj", query_width, hidden, c.qkv_bias);
    w.k = taker.linear(attention + "k_proj", kv_width, hidden, c.qkv_bias);
    w.v = taker.linear(attention + "v_proj", kv_width, hidden, c.qkv_bias);
    w.gate = taker.linear(mlp + "gate_proj", inner, hidden, config.mlp_bias);
    w.up = taker.linear(mlp + "up_proj", inner, hidden, config.mlp_bias);
  }
  if (a.qk_norm != QkNorm::kNone) {
    const bool whole = a.qk_norm == QkNorm::kWhole;
    w.q_norm = taker.norm(attention, "q_norm", whole ? query_width : dim, a.norm_offset);
    w.k_norm = taker.norm(attention, "k_norm", whole ? kv_width : dim, a.norm_offset);
  }
  w.o = taker.linear(attention + "o_proj", hidden, query_width, config.output_bias);
  w.down = taker.linear(mlp + "down_proj", hidden, inner, config.mlp_bias);
  return w;
}

void add_ropes(Model::Weights& w) {
  const ConfigFile& config = w.config;
  const auto dim = static_cast<size_t>(config.model.head_dim);
  if (config.short_rope) w.short_rope.emplace(dim, config.model.rope_theta, *config.short_rope);
  if (config.sliding_theta > 0) w.sliding_rope.emplace(dim, config.sliding_theta);
  const size_t rotated = config.rope.rotated == 0 ? dim : config.rope.rotated;
  const float scale =
      config.attention_scale == 0 ? 1 : config.attention_scale * std::sqrt(static_cast<float>(dim));
  if (scale == 1 && config.rope_magnitude == 1) return;
  w.head_factors.assign(dim, std::sqrt(scale));
  for (size_t c = 0; c < rotated; ++c) w.head_factors[c] *= config.rope_magnitude;
}

}  // namespace

LayerRopes Model::Weights::ropes(size_t context) const {
  const bool is_short = short_rope && context <= static_cast<size_t>(config.rope.original_context);
  const Rope* all = is_short ? &*short_rope : &rope;
  if (!sliding_rope) return all;
  std::vector<const Rope*> each;
  for (int64_t window : config.model.sliding_window)
    each.push_back(window > 0 ? &*sliding_rope : all);
  return LayerRopes(each);
}

std::unique_ptr<Model::Weights> load_weights(const std::filesystem::path& folder) {
  std::optional<Gguf> gguf;
  if (is_gguf_path(folder)) gguf = Gguf::open(folder);
  ConfigFile config = gguf ? read_gguf_config(*gguf) : read_config(folder);
  ModelTensors tensors = gguf ? read_gguf_tensors(std::move(*gguf), config)
                              : ModelTensors(SafeTensors::open_folder(folder));
  Rope rope(static_cast<size_t>(config.model.head_dim), config.model.rope_theta, config.rope);
  auto w = std::make_unique<Model::Weights>(Model::Weights{.config = std::move(config),
                                                           .tensors = std::move(tensors),
                                                           .rope = std::move(rope),
                                                           .short_rope = {},
                                                           .sliding_rope = {},
                                                           .head_factors = {},
                                                           .embedding = {},
                                                           .layers = {},
                                                           .final_norm = {},
                                                           .head = {},
                                                           .bytes = 0,
                                                           .folder = folder,
                                                           .tokenizer = nullptr});
  ModelConfig& c = w->config.model;
  const auto vocab = static_cast<size_t>(c.vocab);
  const auto hidden = static_cast<size_t>(c.hidden);
  Taker taker(w->tensors);
  w->embedding = taker.matrix("model.embed_tokens.weight", vocab, hidden);
  w->final_norm = taker.norm("model.", "norm", hidden, w->config.architecture->norm_offset);
  for (float& weight : w->final_norm) weight *= w->config.logit_scale;
  add_ropes(*w);
  for (size_t l = 0; l < static_cast<size_t>(c.layers); ++l) {
    w->layers.push_back(take_layer(taker, w->config, l));
  }
  if (w->config.ties_unsaid) c.tied_embeddings = !taker.has("lm_head.weight");
  if (c.tied_embeddings) {
    // Some tied checkpoints store the matrix twice; the embedding is the one that counts.
    taker.ignore("lm_head.weight");
    w->head = w->embedding;
  } else {
    w->head = taker.matrix("lm_head.weight", vocab, hidden);
  }
  taker.refuse_leftovers();
  w->bytes = taker.bytes();
  // The tensors that are there count, not config.json. Blocks are decoded to bf16 on their way.
  c.weights = dense_type(w->layers.front().q.w.type).value_or(DType::kBF16);
  return w;
}

// FNV-1a over 8-byte words.
uint64_t fingerprint(const std::vector<LayerWeights>& layers) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const LayerWeights* layer : {&layers.front(), &layers.back()})
    for (const WeightMatrix* w : {&layer->k.w, &layer->v.w}) {
      const auto* bytes = static_cast<const std::byte*>(w->data);
      const size_t size = w->bytes();
      for (size_t i = 0; i + 8 <= size; i += 8) {
        uint64_t word = 0;
        std::memcpy(&word, bytes + i, 8);
        hash = (hash ^ word) * 0x100000001B3u;
        hash ^= hash >> 29;  // words' high bits reach the low ones
      }
    }
  return hash == 0 ? 1 : hash;
}

}  // namespace pith
