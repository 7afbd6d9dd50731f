#include "model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>

#include "core/dtype.h"
#include "core/thread_pool.h"
#include "pith/error.h"

namespace pith {
namespace {

/// Hands out the tensors by name and remembers which were asked for.
class Taker {
 public:
  explicit Taker(const SafeTensors& file) : file_(file) {}

  WeightMatrix matrix(const std::string& name, size_t out, size_t in) {
    const Tensor& t = take(name, {out, in});
    return {t.data, t.dtype(), out, in};
  }
  std::vector<float> vector(const std::string& name, size_t count) {
    const Tensor& t = take(name, {count});
    std::vector<float> out(count);
    const auto* wide = reinterpret_cast<const float*>(t.data);
    const auto* narrow = reinterpret_cast<const uint16_t*>(t.data);
    switch (t.dtype()) {
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
                  fmt::format("{}: tensor '{}' {} has no place in this architecture; config.json "
                              "and the weights do not belong together, or the model is a variant "
                              "that is not supported",
                              tensor.file, name, tensor.shape_text()));
    }
  }

 private:
  const Tensor& take(const std::string& name, const std::vector<size_t>& shape) {
    const Tensor& t = file_.at(name);
    if (t.shape != shape) {
      Tensor expected;
      expected.shape = shape;
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("{}: tensor '{}' has shape {}; config.json asks for {}", t.file, name,
                              t.shape_text(), expected.shape_text()));
    }
    if (taken_.insert(name).second) bytes_ += t.bytes;
    return t;
  }

  const SafeTensors& file_;
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

  LayerWeights w;
  w.attention_norm = taker.vector(prefix + "input_layernorm.weight", hidden);
  w.q = taker.linear(attention + "q_proj", query_width, hidden, c.qkv_bias);
  w.k = taker.linear(attention + "k_proj", kv_width, hidden, c.qkv_bias);
  w.v = taker.linear(attention + "v_proj", kv_width, hidden, c.qkv_bias);
  if (c.qk_norm) {
    w.q_norm = taker.vector(attention + "q_norm.weight", dim);
    w.k_norm = taker.vector(attention + "k_norm.weight", dim);
  }
  w.o = taker.linear(attention + "o_proj", hidden, query_width, config.output_bias);
  w.mlp_norm = taker.vector(prefix + "post_attention_layernorm.weight", hidden);
  w.gate = taker.linear(mlp + "gate_proj", inner, hidden, config.mlp_bias);
  w.up = taker.linear(mlp + "up_proj", inner, hidden, config.mlp_bias);
  w.down = taker.linear(mlp + "down_proj", hidden, inner, config.mlp_bias);
  return w;
}

template <class T>
bool any_full_exponent(const void* numbers, size_t count, T mask) {
  // Adding the exponent's lowest bit carries into the sign bit only from an exponent of all ones:
  // a loop without branches, which compilers turn into vector code.
  const T low = static_cast<T>(mask & (~mask + 1));
  const T* x = static_cast<const T*>(numbers);
  T seen = 0;
  for (size_t i = 0; i < count; ++i) seen |= static_cast<T>((x[i] & mask) + low);
  return (seen & static_cast<T>(~(static_cast<T>(~T{0}) >> 1))) != 0;
}

}  // namespace

bool has_non_finite(const void* numbers, DType dtype, size_t count) {
  switch (dtype) {
    case DType::kF32: return any_full_exponent<uint32_t>(numbers, count, 0x7F800000u);
    case DType::kF16: return any_full_exponent<uint16_t>(numbers, count, 0x7C00u);
    case DType::kBF16: return any_full_exponent<uint16_t>(numbers, count, 0x7F80u);
  }
  return false;
}

void check_finite_weights(const SafeTensors& file, const Progress& progress) {
  constexpr size_t kPiece = size_t{1} << 20;  // numbers a task looks at
  struct Piece {
    const Tensor* tensor;
    size_t first, count;
  };
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : file.tensors()) {
    if (name.ends_with(".rotary_emb.inv_freq")) continue;
    for (size_t first = 0; first < tensor.count(); first += kPiece) {
      pieces.push_back({&tensor, first, std::min(kPiece, tensor.count() - first)});
    }
  }
  ThreadPool pool;
  const size_t batch = 32 * static_cast<size_t>(pool.size());
  for (size_t done = 0; done < pieces.size(); done += batch) {
    if (progress && !progress(done, pieces.size())) {
      throw Error(ErrorCode::kIo, "loading was stopped on request");
    }
    pool.parallel_for(std::min(batch, pieces.size() - done), [&](size_t i, int) {
      const auto [tensor, first, count] = pieces[done + i];
      const DType dtype = tensor->dtype();
      if (!has_non_finite(tensor->data + first * size_of(dtype), dtype, count)) return;
      throw Error(ErrorCode::kNonFinite,
                  fmt::format("{}: tensor '{}' contains NaN or infinity; the file is damaged or "
                              "its training diverged",
                              tensor->file, tensor->name));
    });
  }
  if (progress) progress(pieces.size(), pieces.size());
}

std::unique_ptr<Model::Weights> load_weights(const std::filesystem::path& folder) {
  ConfigFile config = read_config(folder);
  SafeTensors file = SafeTensors::open_folder(folder);
  Rope rope(static_cast<size_t>(config.model.head_dim), config.model.rope_theta, config.rope);
  auto w = std::make_unique<Model::Weights>(Model::Weights{.config = std::move(config),
                                                           .file = std::move(file),
                                                           .rope = std::move(rope),
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
  Taker taker(w->file);
  w->embedding = taker.matrix("model.embed_tokens.weight", vocab, hidden);
  w->final_norm = taker.vector("model.norm.weight", hidden);
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
  c.weights = w->layers.front().q.w.dtype;  // what is there counts, not what config.json says
  return w;
}

// FNV-1a over 8-byte words.
uint64_t fingerprint(const std::vector<LayerWeights>& layers) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const LayerWeights* layer : {&layers.front(), &layers.back()})
    for (const WeightMatrix* w : {&layer->k.w, &layer->v.w}) {
      const auto* bytes = static_cast<const std::byte*>(w->data);
      const size_t size = w->out * w->in * size_of(w->dtype);
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
