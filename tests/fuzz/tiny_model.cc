#include <random>

#include "core/weight_type.h"
#include "fuzz/fuzz.h"
#include "tools/quantize/gguf_writer.h"

namespace pith::fuzz {
namespace {

constexpr size_t kHidden = 32, kHeads = 2, kKvHeads = 1, kDim = 16, kInner = 32, kVocab = 48;

void add_tokenizer(GgufKeys& keys) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "\xe2\x96\x81"};
  for (char c = 'a'; c <= 'z'; ++c) tokens.emplace_back(1, c);
  for (const char* more : {"\xe2\x96\x81t", "th", "he", "in", "er", "an", "re", "on", "<0x0A>",
                           "<0x41>", "<0xC3>", "<0xB6>"})
    tokens.emplace_back(more);
  while (tokens.size() < kVocab) tokens.push_back("w" + std::to_string(tokens.size()));
  std::vector<float> scores(kVocab);
  std::vector<int32_t> types(kVocab, 1);
  for (size_t i = 0; i < kVocab; ++i) {
    scores[i] = -static_cast<float>(i);
    if (tokens[i].starts_with("<0x")) types[i] = 6;
  }
  types[0] = 2, types[1] = types[2] = 3;
  keys.text("tokenizer.ggml.model", "llama");
  keys.texts("tokenizer.ggml.tokens", tokens);
  keys.f32s("tokenizer.ggml.scores", scores);
  keys.i32s("tokenizer.ggml.token_type", types);
  keys.u32("tokenizer.ggml.bos_token_id", 1);
  keys.u32("tokenizer.ggml.eos_token_id", 2);
  keys.u32("tokenizer.ggml.unknown_token_id", 0);
  keys.text("tokenizer.chat_template", "{% for m in messages %}<s>{{ m.content }}{% endfor %}");
}

}  // namespace

std::string tiny_gguf() {
  GgufKeys keys;
  keys.text("general.architecture", "llama");
  keys.u32("llama.block_count", 1);
  keys.u32("llama.embedding_length", kHidden);
  keys.u32("llama.feed_forward_length", kInner);
  keys.u32("llama.attention.head_count", kHeads);
  keys.u32("llama.attention.head_count_kv", kKvHeads);
  keys.u32("llama.attention.key_length", kDim);
  keys.u32("llama.context_length", 512);
  keys.f32("llama.rope.freq_base", 10000);
  keys.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  add_tokenizer(keys);
  const auto f32 = static_cast<uint32_t>(WeightType::kF32);
  std::vector<GgufTensorSpec> specs = {{"token_embd.weight", f32, {kVocab, kHidden}},
                                       {"output_norm.weight", f32, {kHidden}}};
  const auto add = [&](const char* name, std::vector<size_t> shape) {
    specs.push_back({std::string("blk.0.") + name + ".weight", f32, std::move(shape)});
  };
  add("attn_norm", {kHidden}), add("ffn_norm", {kHidden});
  add("attn_q", {kHeads * kDim, kHidden}), add("attn_k", {kKvHeads * kDim, kHidden});
  add("attn_v", {kKvHeads * kDim, kHidden}), add("attn_output", {kHidden, kHeads * kDim});
  add("ffn_gate", {kInner, kHidden}), add("ffn_up", {kInner, kHidden});
  add("ffn_down", {kHidden, kInner});
  std::string out = gguf_head(keys, specs);
  std::mt19937 random(3);
  for (const GgufTensorSpec& spec : specs) {
    for (size_t i = gguf_tensor_bytes(spec) / sizeof(float); i > 0; --i) {
      const float x =
          spec.shape.size() == 1 ? 1.0f : static_cast<float>(random() % 200) / 400 - 0.25f;
      out.append(reinterpret_cast<const char*>(&x), sizeof(x));
    }
    out.resize((out.size() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment);
  }
  return out;
}

}  // namespace pith::fuzz
