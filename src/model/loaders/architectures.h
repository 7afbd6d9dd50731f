#pragma once
// The architectures that load, one row each, and the refusal of all others by name.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace pith {

/// Which layers use sliding_window.
enum class Sliding : uint8_t {
  kNever,
  kAlways,   ///< all, where the field is set
  kByFlag,   ///< with use_sliding_window, from layer max_window_layers on
  kPattern,  ///< all but every sliding_window_pattern-th
};

/// The numbers over which queries and keys are normalised.
enum class QkNorm : uint8_t {
  kNone,
  kHead,   ///< each head alone
  kWhole,  ///< all heads together
};

/// The MLP is down(act(gate(x)) * up(x)).
enum class Activation : uint8_t { kSilu, kGeluTanh };

/// The traits of a member of the family. The forward pass reads nothing else of it.
struct Architecture {
  const char* name;
  const char* model_type;
  Sliding sliding = Sliding::kNever;
  int64_t default_window = 0;  ///< where the config does not mention sliding_window; 0: none
  bool qkv_bias = false;       ///< always
  QkNorm qk_norm = QkNorm::kNone;
  bool attention_bias_field = false;  ///< attention_bias adds biases to q, k, v and o
  bool mlp_bias_field = false;
  bool kv_heads_default_to_heads = false;
  int default_head_dim = 0;  ///< 0: hidden_size / num_attention_heads
  float default_norm_eps = 1e-6f;

  /// Names of a layer's norms: before and after attention and MLP, of their input and of what they
  /// add to the residual stream. Null: there is none.
  const char* attention_norm = "input_layernorm";
  const char* attention_post_norm = nullptr;
  const char* mlp_norm = "post_attention_layernorm";
  const char* mlp_post_norm = nullptr;
  float norm_offset = 0;  ///< of every norm's weight, as a folder stores it

  bool fused = false;  ///< q, k and v are one matrix (qkv_proj), gate and up too (gate_up_proj)
  const char* activation_field = "hidden_act";
  const char* default_activation = "silu";
  bool query_scalar = false;        ///< scores times 1 / sqrt(query_pre_attn_scalar)
  bool embedding_by_width = false;  ///< embeddings times sqrt(hidden_size)
  bool multipliers = false;         ///< embedding_, residual_, attention_multiplier, logits_scaling
  double sliding_theta = 0;         ///< default of rope_local_base_freq; 0: one RoPE for all layers
  bool partial_rotary = false;
  size_t window_pattern = 6;      ///< default of sliding_window_pattern
  double attention_soft_cap = 0;  ///< default of attn_logit_softcapping; 0: the field is refused
  double logit_soft_cap = 0;      ///< likewise of final_logit_softcapping
};

std::span<const Architecture> architectures();

/// Throws kUnsupported: what `name` needs that is not here, and what is supported.
[[noreturn]] void refuse_architecture(const std::string& where, const std::string& name);

/// Throws kUnsupported if a field says that the model has latent attention, experts or state-space
/// layers, whatever it calls itself. `has` tells whether a field is set.
void refuse_foreign_fields(const std::string& where, const std::string& name,
                           const std::function<bool(const char*)>& has);

}  // namespace pith
