#pragma once
// Small models with random weights, of the shapes that the GPU takes: heads of 64, 128 or 256.

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string_view>

#include "core/dtype.h"
#include "core/safetensors.h"
#include "model/loaders/architectures.h"
#include "model/test_files.h"
#include "pith/model.h"

namespace pith::cuda {

struct RandomModel {
  DType dtype = DType::kBF16;
  int head_dim = 64, heads = 4, kv_heads = 2, layers = 2, hidden = 192, inner = 320, vocab = 301;
  bool qkv_bias = false, biases = false;  ///< biases: of all matrices but q, k and v too
  bool qk_norm = false, tied = false;
  int sliding = 0, first_sliding = 0;  ///< layers from first_sliding on slide over `sliding` tokens
  const char* like = nullptr;          ///< an architecture's name; null: by what is set above
  const char* more = "{}";             ///< fields of config.json
};

class RandomModelFolder {
 public:
  explicit RandomModelFolder(const RandomModel& m) : m_(m) {
    const bool qwen2 = m.qkv_bias && !m.biases;
    const char* name = m.like          ? m.like
                       : m.qk_norm     ? "Qwen3ForCausalLM"
                       : qwen2         ? "Qwen2ForCausalLM"
                       : m.sliding > 0 ? "MistralForCausalLM"
                                       : "LlamaForCausalLM";
    for (const Architecture& a : architectures()) {
      if (std::string_view(a.name) == name) row_ = &a;
    }
    nlohmann::json config{{"architectures", {name}},
                          {"hidden_size", m.hidden},
                          {"intermediate_size", m.inner},
                          {"num_hidden_layers", m.layers},
                          {"num_attention_heads", m.heads},
                          {"num_key_value_heads", m.kv_heads},
                          {"head_dim", m.head_dim},
                          {"vocab_size", m.vocab},
                          {"max_position_embeddings", 4096},
                          {"rms_norm_eps", 1e-5},
                          {"rope_theta", 10000.0},
                          {"hidden_act", "silu"},
                          {"attention_bias", m.biases},
                          {"mlp_bias", m.biases},
                          {"tie_word_embeddings", m.tied},
                          {"bos_token_id", 0},
                          {"eos_token_id", 1}};
    if (m.sliding > 0) {
      config["sliding_window"] = m.sliding;
      config["use_sliding_window"] = true;
      config["max_window_layers"] = m.first_sliding;
    }
    config.update(nlohmann::json::parse(m.more));
    testing_files::write_file(folder_.path() / "config.json", config.dump());
    add_tensors();
    std::vector<TensorBytes> tensors;
    for (const auto& [tensor, e] : entries_) tensors.push_back({e.spec, e.bytes.data()});
    write_safetensors(folder_.path() / "model.safetensors", tensors);
  }
  std::shared_ptr<const Model> load() const { return Model::load(folder_.path()); }

 private:
  struct Entry {
    TensorSpec spec;
    std::vector<std::byte> bytes;
  };

  void add(const std::string& name, std::vector<size_t> shape, float mean, float deviation) {
    const TensorType type = m_.dtype == DType::kF32   ? TensorType::kF32
                            : m_.dtype == DType::kF16 ? TensorType::kF16
                                                      : TensorType::kBF16;
    size_t count = 1;
    for (size_t n : shape) count *= n;
    Entry e{{name, type, std::move(shape)}, std::vector<std::byte>(count * size_of(m_.dtype))};
    std::normal_distribution<float> draw(mean, deviation);
    for (size_t i = 0; i < count; ++i) {
      const float x = draw(random_);
      if (m_.dtype == DType::kF32) {
        reinterpret_cast<float*>(e.bytes.data())[i] = x;
      } else {
        reinterpret_cast<uint16_t*>(e.bytes.data())[i] =
            m_.dtype == DType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
      }
    }
    entries_.emplace(name, std::move(e));
  }
  void matrix(const std::string& name, int out, int in, bool bias) {
    add(name + ".weight", {static_cast<size_t>(out), static_cast<size_t>(in)}, 0,
        1 / std::sqrt(static_cast<float>(in)));
    if (bias) add(name + ".bias", {static_cast<size_t>(out)}, 0, 0.3f);
  }
  /// Of a prefix and a name, if there is one.
  void norm(const std::string& prefix, const char* name, int width) {
    if (!name) return;
    add(prefix + name + ".weight", {static_cast<size_t>(width)}, 1 - row_->norm_offset, 0.2f);
  }
  void add_tensors() {
    matrix("model.embed_tokens", m_.vocab, m_.hidden, false);
    for (int l = 0; l < m_.layers; ++l) add_layer("model.layers." + std::to_string(l) + ".");
    norm("model.", "norm", m_.hidden);
    if (!m_.tied) matrix("lm_head", m_.vocab, m_.hidden, false);
  }

  void add_layer(const std::string& layer) {
    const int width = m_.heads * m_.head_dim, kv = m_.kv_heads * m_.head_dim;
    const std::string attention = layer + "self_attn.", mlp = layer + "mlp.";
    norm(layer, row_->attention_norm, m_.hidden);
    if (row_->fused) {
      matrix(attention + "qkv_proj", width + 2 * kv, m_.hidden, false);
    } else {
      matrix(attention + "q_proj", width, m_.hidden, m_.qkv_bias);
      matrix(attention + "k_proj", kv, m_.hidden, m_.qkv_bias);
      matrix(attention + "v_proj", kv, m_.hidden, m_.qkv_bias);
    }
    if (row_->qk_norm != QkNorm::kNone) {
      const bool whole = row_->qk_norm == QkNorm::kWhole;
      norm(attention, "q_norm", whole ? width : m_.head_dim);
      norm(attention, "k_norm", whole ? kv : m_.head_dim);
    }
    matrix(attention + "o_proj", m_.hidden, width, m_.biases);
    norm(layer, row_->attention_post_norm, m_.hidden);
    norm(layer, row_->mlp_norm, m_.hidden);
    if (row_->fused) {
      matrix(mlp + "gate_up_proj", 2 * m_.inner, m_.hidden, false);
    } else {
      matrix(mlp + "gate_proj", m_.inner, m_.hidden, m_.biases);
      matrix(mlp + "up_proj", m_.inner, m_.hidden, m_.biases);
    }
    matrix(mlp + "down_proj", m_.hidden, m_.inner, m_.biases);
    norm(layer, row_->mlp_post_norm, m_.hidden);
  }

  RandomModel m_;
  const Architecture* row_ = nullptr;
  testing_files::TemporaryFolder folder_;
  std::mt19937 random_{5};
  std::map<std::string, Entry> entries_;
};

}  // namespace pith::cuda
