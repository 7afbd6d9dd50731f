#pragma once
// A tiny model of random weights as a GGUF file, and as the folder of f32 weights that it stands
// for.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "core/dtype.h"
#include "core/safetensors.h"
#include "kernels/block_products.h"
#include "model/test_files.h"
#include "tools/quantize/gguf_writer.h"

namespace pith::testing_gguf {

inline constexpr size_t kHidden = 256, kHeads = 4, kKvHeads = 2, kInner = 512, kVocab = 96,
                        kLayers = 2;

struct Stored {
  std::string gguf, hugging_face;
  WeightType type = WeightType::kF32;
  std::vector<size_t> shape;
  std::vector<std::byte> bytes;
  std::vector<float> numbers;  // as Hugging Face orders them
};

/// A tiny model of random weights, in both forms.
class TwoForms {
 public:
  explicit TwoForms(std::string architecture, WeightType type = WeightType::kQ8Zero,
                    size_t dim = 64)
      : architecture_(std::move(architecture)), type_(type), dim_(dim) {
    keys = [this](GgufKeys& k) {
      const std::string a = architecture_ + ".";
      k.u32(a + "block_count", kLayers);
      k.u32(a + "embedding_length", kHidden);
      k.u32(a + "feed_forward_length", kInner);
      k.u32(a + "attention.head_count", kHeads);
      k.u32(a + "attention.head_count_kv", kKvHeads);
      k.u32(a + "attention.key_length", static_cast<uint32_t>(dim_));
      k.u32(a + "context_length", 512);
      k.f32(a + "rope.freq_base", 20000);
      k.f32(a + "attention.layer_norm_rms_epsilon", 1e-5f);
    };
    config = {{"hidden_size", kHidden},
              {"intermediate_size", kInner},
              {"num_hidden_layers", kLayers},
              {"num_attention_heads", kHeads},
              {"num_key_value_heads", kKvHeads},
              {"head_dim", dim_},
              {"vocab_size", kVocab},
              {"max_position_embeddings", 512},
              {"rope_theta", 20000},
              {"rms_norm_eps", 1e-5},
              {"tie_word_embeddings", true}};
    config["architectures"] = {architecture_ == "llama"   ? "LlamaForCausalLM"
                               : architecture_ == "qwen2" ? "Qwen2ForCausalLM"
                               : gemma2()                 ? "Gemma2ForCausalLM"
                                                          : "Qwen3ForCausalLM"};
    add("token_embd.weight", "model.embed_tokens.weight", type_, {kVocab, kHidden});
    add("output_norm.weight", "model.norm.weight", WeightType::kF32, {kHidden});
    for (size_t l = 0; l < kLayers; ++l) add_layer(l);
  }

  void add(const std::string& gguf, const std::string& hugging_face, WeightType type,
           std::vector<size_t> shape, size_t permuted_heads = 0) {
    Stored s{gguf, hugging_face, type, shape, {}, {}};
    const size_t in = shape.back(), out = shape.size() == 1 ? 1 : shape.front();
    std::vector<float> numbers(in * out);
    s.bytes.resize(out * row_bytes(type, in));
    std::normal_distribution<float> normal(shape.size() == 1 ? 1.0f : 0.0f, 0.06f);
    if (const auto dense = dense_type(type)) {
      for (float& x : numbers) x = normal(random_);
      scalar_.from_f32(s.bytes.data(), numbers.data(), *dense, numbers.size());
      scalar_.to_f32(numbers.data(), s.bytes.data(), *dense, numbers.size());
    } else {
      make_blocks(s, numbers);
    }
    s.numbers = permuted_heads == 0 ? numbers : in_order(numbers, permuted_heads);
    if (gemma2() && shape.size() == 1)
      for (float& x : s.numbers) x -= 1;  // folders leave it out of norms
    stored.push_back(std::move(s));
  }

  std::filesystem::path write_gguf() const {
    GgufKeys k;
    k.text("general.architecture", architecture_);
    keys(k);
    std::vector<GgufTensorSpec> specs;
    for (const Stored& s : stored)
      specs.push_back({s.gguf, static_cast<uint32_t>(s.type), s.shape});
    std::string out = gguf_head(k, specs);
    for (const Stored& s : stored) {
      out.append(reinterpret_cast<const char*>(s.bytes.data()), s.bytes.size());
      out.resize((out.size() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment);
    }
    const auto path = folder_.path() / "model.gguf";
    testing_files::write_file(path, out);
    return path;
  }
  std::filesystem::path write_folder() const {
    testing_files::write_file(folder_.path() / "config.json", config.dump());
    std::vector<TensorBytes> tensors;
    for (const Stored& s : stored)
      tensors.push_back({{s.hugging_face, TensorType::kF32, s.shape}, s.numbers.data()});
    write_safetensors(folder_.path() / "model.safetensors", tensors);
    return folder_.path();
  }

  std::vector<Stored> stored;
  std::function<void(GgufKeys&)> keys;
  nlohmann::json config;

 private:
  bool gemma2() const { return architecture_ == "gemma2"; }
  void add_layer(size_t l) {
    const std::string from = "blk." + std::to_string(l) + ".";
    const std::string to = "model.layers." + std::to_string(l) + ".";
    const auto matrix = [&](const char* gguf, const char* name, size_t out, size_t in,
                            size_t heads = 0) {
      add(from + gguf + ".weight", to + name + ".weight", type_, {out, in},
          architecture_ == "llama" ? heads : 0);
    };
    const auto vector = [&](const char* gguf, const char* name, size_t count, size_t heads = 0) {
      add(from + gguf, to + name, WeightType::kF32, {count}, architecture_ == "llama" ? heads : 0);
    };
    vector("attn_norm.weight", "input_layernorm.weight", kHidden);
    if (gemma2()) {
      vector("post_attention_norm.weight", "post_attention_layernorm.weight", kHidden);
      vector("ffn_norm.weight", "pre_feedforward_layernorm.weight", kHidden);
      vector("post_ffw_norm.weight", "post_feedforward_layernorm.weight", kHidden);
    } else {
      vector("ffn_norm.weight", "post_attention_layernorm.weight", kHidden);
    }
    matrix("attn_q", "self_attn.q_proj", kHeads * dim_, kHidden, kHeads);
    matrix("attn_k", "self_attn.k_proj", kKvHeads * dim_, kHidden, kKvHeads);
    matrix("attn_v", "self_attn.v_proj", kKvHeads * dim_, kHidden);
    matrix("attn_output", "self_attn.o_proj", kHidden, kHeads * dim_);
    matrix("ffn_gate", "mlp.gate_proj", kInner, kHidden);
    matrix("ffn_up", "mlp.up_proj", kInner, kHidden);
    matrix("ffn_down", "mlp.down_proj", kHidden, kInner);
    if (architecture_ == "qwen2") {
      vector("attn_q.bias", "self_attn.q_proj.bias", kHeads * dim_);
      vector("attn_k.bias", "self_attn.k_proj.bias", kKvHeads * dim_);
      vector("attn_v.bias", "self_attn.v_proj.bias", kKvHeads * dim_);
    }
    if (architecture_ == "qwen3") {
      vector("attn_q_norm.weight", "self_attn.q_norm.weight", dim_);
      vector("attn_k_norm.weight", "self_attn.k_norm.weight", dim_);
    }
  }

  /// Random codes, with scales that bring numbers to about 0.06.
  void make_blocks(Stored& s, std::vector<float>& numbers) {
    for (std::byte& b : s.bytes) b = static_cast<std::byte>(random_());
    const auto put = [&](float factor) {
      std::mt19937 again(7);
      for (size_t at = 0; at < s.bytes.size(); at += block_bytes(s.type)) {
        const auto scale = static_cast<float>(1 + again() % 100) * 1e-4f * factor;
        for (const uint8_t offset : scale_offsets(s.type)) {
          const uint16_t half = f32_to_f16(again() % 3 == 0 ? -scale : scale);
          std::memcpy(s.bytes.data() + at + offset, &half, 2);
        }
      }
      block_kernels(scalar_).decode(numbers.data(), s.bytes.data(), s.type, numbers.size());
    };
    put(1);
    double square = 0;
    for (const float x : numbers) square += double{x} * x;
    put(0.06f / static_cast<float>(std::sqrt(square / static_cast<double>(numbers.size()))));
  }

  /// hf[b D/2 + i] = gguf[2 i + b], in each head.
  std::vector<float> in_order(const std::vector<float>& numbers, size_t heads) const {
    std::vector<float> out(numbers.size());
    const size_t in = numbers.size() / (heads * dim_);
    for (size_t h = 0; h < heads; ++h)
      for (size_t i = 0; i < dim_ / 2; ++i)
        for (size_t b = 0; b < 2; ++b)
          std::copy_n(numbers.begin() + static_cast<ptrdiff_t>((h * dim_ + 2 * i + b) * in), in,
                      out.begin() + static_cast<ptrdiff_t>((h * dim_ + b * dim_ / 2 + i) * in));
    return out;
  }

  std::string architecture_;
  WeightType type_;
  size_t dim_;
  std::mt19937 random_{5};
  const Kernels& scalar_ = kernels_for("scalar");
  testing_files::TemporaryFolder folder_;
};

}  // namespace pith::testing_gguf
