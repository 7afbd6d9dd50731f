#include "model/loaders/architectures.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>

#include "pith/error.h"
#include "pith/model.h"

namespace pith {
namespace {

// DeepSeek-R1-Distill models are Qwen2 and Llama models by their config.json.
constexpr std::array kArchitectures = {
    Architecture{.name = "LlamaForCausalLM",
                 .model_type = "llama",
                 .attention_bias_field = true,
                 .mlp_bias_field = true,
                 .kv_heads_default_to_heads = true},
    Architecture{.name = "MistralForCausalLM",
                 .model_type = "mistral",
                 .sliding = Sliding::kAlways,
                 .default_window = 4096},
    Architecture{.name = "Qwen2ForCausalLM",
                 .model_type = "qwen2",
                 .sliding = Sliding::kByFlag,
                 .qkv_bias = true},
    Architecture{.name = "Qwen3ForCausalLM",
                 .model_type = "qwen3",
                 .sliding = Sliding::kByFlag,
                 .qk_norm = QkNorm::kHead,
                 .attention_bias_field = true,
                 .default_head_dim = 128},
    Architecture{.name = "Gemma2ForCausalLM",
                 .model_type = "gemma2",
                 .sliding = Sliding::kPattern,
                 .default_window = 4096,
                 .attention_bias_field = true,
                 .default_head_dim = 256,
                 .attention_post_norm = "post_attention_layernorm",
                 .mlp_norm = "pre_feedforward_layernorm",
                 .mlp_post_norm = "post_feedforward_layernorm",
                 .norm_offset = 1,
                 .activation_field = "hidden_activation",
                 .default_activation = "gelu_pytorch_tanh",
                 .query_scalar = true,
                 .embedding_by_width = true,
                 .window_pattern = 2,
                 .attention_soft_cap = 50,
                 .logit_soft_cap = 30},
    Architecture{.name = "Gemma3ForCausalLM",
                 .model_type = "gemma3_text",
                 .sliding = Sliding::kPattern,
                 .default_window = 4096,
                 .qk_norm = QkNorm::kHead,
                 .attention_bias_field = true,
                 .default_head_dim = 256,
                 .attention_post_norm = "post_attention_layernorm",
                 .mlp_norm = "pre_feedforward_layernorm",
                 .mlp_post_norm = "post_feedforward_layernorm",
                 .norm_offset = 1,
                 .activation_field = "hidden_activation",
                 .default_activation = "gelu_pytorch_tanh",
                 .query_scalar = true,
                 .embedding_by_width = true,
                 .sliding_theta = 10000},
    Architecture{.name = "Phi3ForCausalLM",
                 .model_type = "phi3",
                 .sliding = Sliding::kAlways,
                 .kv_heads_default_to_heads = true,
                 .default_norm_eps = 1e-5f,
                 .fused = true,
                 .partial_rotary = true},
    Architecture{.name = "Olmo2ForCausalLM",
                 .model_type = "olmo2",
                 .qk_norm = QkNorm::kWhole,
                 .attention_bias_field = true,
                 .kv_heads_default_to_heads = true,
                 .default_norm_eps = 1e-5f,
                 .attention_norm = nullptr,
                 .attention_post_norm = "post_attention_layernorm",
                 .mlp_norm = nullptr,
                 .mlp_post_norm = "post_feedforward_layernorm"},
    Architecture{.name = "GraniteForCausalLM",
                 .model_type = "granite",
                 .attention_bias_field = true,
                 .mlp_bias_field = true,
                 .kv_heads_default_to_heads = true,
                 .multipliers = true},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kArchitectures.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kArchitectures[i].name;
  return names;
}();

struct Refusal {
  std::string_view reason;
  std::array<std::string_view, 28> words;  // lower case; a name that contains one is refused so
};

constexpr std::string_view kMla = "multi-head latent attention (MLA)";
constexpr std::string_view kHybrid = "a hybrid, linear-attention or state-space model";
constexpr std::string_view kMoe = "a mixture of experts (MoE)";
constexpr std::string_view kEncoder = "not a decoder that predicts the next token of a text";

// Hybrids come before mixtures, because several are both and the first match speaks.
constexpr std::array<Refusal, 4> kRefusals = {{
    {kHybrid,
     {"qwen3next", "qwen3_next", "qwen3_5",    "jamba",          "mamba",  "falconh1",
      "falcon_h1", "bamba",      "zamba",      "recurrentgemma", "rwkv",   "granitemoehybrid",
      "nemotronh", "nemotron_h", "lfm2",       "minimax",        "retnet", "xlstm",
      "hymba",     "kimilinear", "olmohybrid", "plamo2"}},
    {kMla,
     {"deepseekv2", "deepseekv3", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseekv32",
      "minicpm3", "kimi", "longcat", "glm4moelite", "youtu"}},
    {kMoe,
     {"moe", "mixtral", "gptoss", "gpt_oss", "dbrx", "llama4", "deepseekforcausallm",
      "switchtransformers", "arctic", "grok", "jetmoe", "dots1", "flexolmo"}},
    {kEncoder,
     {"formaskedlm", "forsequenceclassification", "fortokenclassification",
      "forconditionalgeneration", "forquestionanswering", "vision"}},
}};

[[noreturn]] void refuse(const std::string& where, const std::string& name,
                         std::string_view reason) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}: architecture {} is not supported{}{}. Supported: {} (Llama 2 to 3.2, "
                  "Mistral, Qwen 2, 2.5 and 3, Gemma 2 and 3, Phi 3 and 4 mini, OLMo 2, Granite, "
                  "DeepSeek-R1-Distill)",
                  where, name, reason.empty() ? "" : ": it is or has ", reason,
                  fmt::join(kNames, ", ")));
}

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

std::span<const std::string_view> Model::supported_architectures() { return kNames; }

void refuse_architecture(const std::string& where, const std::string& name) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Refusal& refusal : kRefusals) {
    for (std::string_view word : refusal.words) {
      if (!word.empty() && lower.find(word) != std::string::npos) {
        refuse(where, name, refusal.reason);
      }
    }
  }
  refuse(where, name, "");
}

void refuse_foreign_fields(const std::string& where, const std::string& name,
                           const std::function<bool(const char*)>& has) {
  const auto any = [&](std::initializer_list<const char*> fields) {
    return std::any_of(fields.begin(), fields.end(), has);
  };
  if (any({"kv_lora_rank", "q_lora_rank"})) refuse(where, name, kMla);
  if (any({"num_experts", "num_local_experts", "n_routed_experts"})) refuse(where, name, kMoe);
  if (any({"mamba_d_state", "ssm_state_size", "linear_num_value_heads"})) {
    refuse(where, name, kHybrid);
  }
}

}  // namespace pith
