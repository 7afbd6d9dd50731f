#pragma once
// The architectures that load, one row each, and the refusal of all others by name.

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace pith {

/// When layers use sliding_window.
enum class Sliding : uint8_t {
  kNever,
  kAlways,  ///< wherever the field is set
  kByFlag,  ///< with use_sliding_window, from layer max_window_layers on
};

/// What distinguishes a member of the family.
struct Architecture {
  const char* name;
  const char* model_type;
  Sliding sliding = Sliding::kNever;
  bool qkv_bias = false;  ///< always
  bool qk_norm = false;
  bool attention_bias_field = false;  ///< attention_bias adds biases to q, k, v and o
  bool mlp_bias_field = false;
  bool kv_heads_default_to_heads = false;
  int default_head_dim = 0;  ///< 0: hidden_size / num_attention_heads
};

std::span<const Architecture> architectures();

/// Throws kUnsupported: what `name` needs that is not here, and what is supported.
[[noreturn]] void refuse_architecture(const std::string& where, const std::string& name);

/// Throws kUnsupported if a field says that the model has latent attention, experts or state-space
/// layers, whatever it calls itself. `has` tells whether a field is set.
void refuse_foreign_fields(const std::string& where, const std::string& name,
                           const std::function<bool(const char*)>& has);

}  // namespace pith
