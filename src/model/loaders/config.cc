#include "model/loaders/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/json_file.h"
#include "model/loaders/architectures.h"
#include "model/loaders/config_fields.h"
#include "model/loaders/config_rope.h"
#include "pith/error.h"

namespace pith {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kMaxCount = int64_t{1} << 24;  // heads, widths, vocabulary
constexpr int kMaxLayers = 4096;
constexpr int kMaxHeadDim = 512;

const Architecture& find_architecture(const Fields& fields) {
  std::string name;
  if (const json* list = fields.find("architectures")) {
    if (!list->is_array() || list->size() != 1 || !(*list)[0].is_string()) {
      fields.corrupt("architectures", fmt::format("is {}; expected one name", Fields::dump(*list)));
    }
    name = (*list)[0].get<std::string>();
  } else {
    const std::string type = fields.text("model_type", "");
    if (type.empty()) fields.corrupt("architectures", "is missing, and so is 'model_type'");
    for (const Architecture& a : architectures()) {
      if (type == a.model_type) return a;
    }
    name = fmt::format("of model_type '{}'", type);
  }
  for (const Architecture& a : architectures()) {
    if (name == a.name) return a;
  }
  refuse_architecture(fields.where(), name);
}

/// Variants that change the computation in ways this forward pass does not know.
void refuse_variants(const Fields& fields, const std::string& name) {
  refuse_foreign_fields(fields.where(), name,
                        [&](const char* field) { return fields.find(field) != nullptr; });
  if (const json* quantization = fields.find("quantization_config")) {
    const auto method =
        quantization->is_object() ? quantization->value("quant_method", json("?")) : json("?");
    fields.unsupported(
        fmt::format("its weights are quantized ({}); supported: F32, F16 and BF16 "
                    "weights. Use the unquantized checkpoint",
                    Fields::dump(method)));
  }
  if (fields.flag("use_bidirectional_attention", false)) {
    fields.unsupported("use_bidirectional_attention is true; supported: causal attention");
  }
  if (!fields.flag("is_causal", true))
    fields.unsupported("is_causal is false; supported: causal attention");
}

void read_soft_caps(const Fields& fields, const Architecture& architecture, ConfigFile& out) {
  const auto read = [&](const char* name, double otherwise) {
    if (!fields.has(name)) return static_cast<float>(otherwise);
    if (!fields.find(name)) return 0.0f;
    if (otherwise == 0)
      fields.unsupported(
          fmt::format("{} is set; supported: no soft caps in a {}", name, architecture.name));
    constexpr double kLeast = 1e-3, kMost = 1e6;
    return static_cast<float>(fields.number(name, kLeast, kMost));
  };
  out.model.attention_soft_cap = read("attn_logit_softcapping", architecture.attention_soft_cap);
  out.logit_soft_cap = read("final_logit_softcapping", architecture.logit_soft_cap);
}

void read_activation(const Fields& fields, const Architecture& architecture, ConfigFile& out) {
  const char* field = architecture.activation_field;
  const std::string name = fields.text(field, architecture.default_activation);
  if (name == "gelu_pytorch_tanh") {
    out.activation = Activation::kGeluTanh;
  } else if (name != "silu" && name != "swish") {
    fields.unsupported(fmt::format("{} is '{}'; supported: silu, gelu_pytorch_tanh", field, name));
  }
}

/// Factors of embeddings, scores, residuals and logits.
void read_scales(const Fields& fields, const Architecture& architecture, ConfigFile& out) {
  const auto number = [&](const char* name, double otherwise) {
    return fields.find(name) ? fields.number(name, 0, 1e6) : otherwise;
  };
  if (architecture.query_scalar) {
    out.attention_scale = static_cast<float>(1 / std::sqrt(number("query_pre_attn_scalar", 256)));
  }
  if (architecture.embedding_by_width) {
    out.embedding_scale = std::sqrt(static_cast<float>(out.model.hidden));
  }
  if (architecture.multipliers) {
    fold_multipliers({.embedding = number("embedding_multiplier", 1),
                      .residual = number("residual_multiplier", 1),
                      .attention = number("attention_multiplier", 1),
                      .logits = number("logits_scaling", 1)},
                     out);
  }
}

void read_shapes(const Fields& fields, const Architecture& architecture, ModelConfig& c) {
  c.layers = static_cast<int>(fields.integer("num_hidden_layers", 1, kMaxLayers));
  c.hidden = static_cast<int>(fields.integer("hidden_size", 1, kMaxCount));
  c.intermediate = static_cast<int>(fields.integer("intermediate_size", 1, kMaxCount));
  c.query_heads = static_cast<int>(fields.integer("num_attention_heads", 1, kMaxCount));
  c.kv_heads = c.query_heads;
  if (!architecture.kv_heads_default_to_heads || fields.find("num_key_value_heads")) {
    c.kv_heads = static_cast<int>(fields.integer("num_key_value_heads", 1, kMaxCount));
  }
  if (c.query_heads % c.kv_heads != 0) {
    fields.unsupported(
        fmt::format("{} query heads cannot share {} KV heads evenly; supported: "
                    "num_attention_heads a multiple of num_key_value_heads",
                    c.query_heads, c.kv_heads));
  }
  if (fields.find("head_dim")) {
    c.head_dim = static_cast<int>(fields.integer("head_dim", 1, kMaxCount));
  } else if (architecture.default_head_dim != 0) {
    c.head_dim = architecture.default_head_dim;
  } else if (c.hidden % c.query_heads != 0) {
    fields.corrupt("hidden_size",
                   fmt::format("({}) is no multiple of num_attention_heads ({}), and "
                               "there is no 'head_dim'",
                               c.hidden, c.query_heads));
  } else {
    c.head_dim = c.hidden / c.query_heads;
  }
  if (c.head_dim % 16 != 0 || c.head_dim > kMaxHeadDim) {
    fields.unsupported(fmt::format("head_dim is {}; supported: multiples of 16 up to {}",
                                   c.head_dim, kMaxHeadDim));
  }
  c.vocab = static_cast<int>(fields.integer("vocab_size", 1, kMaxCount));
  c.context = fields.integer("max_position_embeddings", 1, kMaxContext);
  c.norm_eps = architecture.default_norm_eps;
  if (fields.find("rms_norm_eps"))
    c.norm_eps = static_cast<float>(fields.number("rms_norm_eps", 0, 1));
}

/// Which layers see only the newest positions, as transformers decides it: the list layer_types, or
/// else the architecture's own rule.
void read_sliding_window(const Fields& fields, const Architecture& architecture, ModelConfig& c) {
  c.sliding_window.assign(static_cast<size_t>(c.layers), 0);
  if (architecture.sliding == Sliding::kNever) return;
  if (architecture.sliding == Sliding::kByFlag && !fields.flag("use_sliding_window", false)) return;
  int64_t window = architecture.default_window;
  if (fields.has("sliding_window") || window == 0) {
    if (!fields.find("sliding_window")) return;
    window = fields.integer("sliding_window", 1, kMaxContext);
  }
  const bool listed = fields.find("layer_types") != nullptr;
  size_t first = 0, period = 0;
  if (architecture.sliding == Sliding::kByFlag && !listed) {
    first = static_cast<size_t>(fields.integer("max_window_layers", 0, kMaxLayers));
  }
  if (architecture.sliding == Sliding::kPattern && !listed) {
    period = architecture.window_pattern;
    for (const char* name : {"sliding_window_pattern", "_sliding_window_pattern"}) {
      if (fields.find(name)) period = static_cast<size_t>(fields.integer(name, 1, kMaxLayers));
    }
  }
  for (size_t l = first; l < c.sliding_window.size(); ++l) {
    if (period == 0 || (l + 1) % period != 0) c.sliding_window[l] = window;
  }
}

void read_layer_types(const Fields& fields, const Architecture& architecture, ModelConfig& c) {
  const json* types = fields.find("layer_types");
  if (!types) return;
  if (!types->is_array() || types->size() != static_cast<size_t>(c.layers)) {
    fields.corrupt("layer_types", fmt::format("is no list of {} names", c.layers));
  }
  for (size_t l = 0; l < types->size(); ++l) {
    const json& type = (*types)[l];
    if (type == "full_attention") {
      c.sliding_window[l] = 0;
    } else if (type != "sliding_attention") {
      fields.unsupported(
          fmt::format("layer {} is of type {}; supported: full_attention, "
                      "sliding_attention (hybrid models with linear attention or "
                      "state-space layers are not)",
                      l, Fields::dump(type)));
    } else if (architecture.sliding == Sliding::kNever || c.sliding_window[l] == 0) {
      fields.corrupt("layer_types", fmt::format("says that layer {} slides, but no sliding window "
                                                "is in force",
                                                l));
    }
  }
}

void read_biases(const Fields& fields, const Architecture& architecture, ConfigFile& out) {
  const bool attention = fields.flag("attention_bias", false);
  out.mlp_bias = fields.flag("mlp_bias", false);
  if (attention && !architecture.attention_bias_field) {
    fields.unsupported(fmt::format("attention_bias of a {}", architecture.name));
  }
  if (out.mlp_bias && !architecture.mlp_bias_field) {
    fields.unsupported(fmt::format("mlp_bias of a {}", architecture.name));
  }
  out.model.qkv_bias = attention || architecture.qkv_bias;
  out.output_bias = attention;
  out.model.qk_norm = architecture.qk_norm != QkNorm::kNone;
}

void add_ends(const Fields& fields, std::vector<int32_t>& eos) {
  const json* value = fields.find("eos_token_id");
  if (!value) return;
  const json list = value->is_array() ? *value : json::array({*value});
  for (const json& id : list) {
    if (!id.is_number_integer() || id < -1 || id > kMaxCount) {
      fields.corrupt("eos_token_id",
                     fmt::format("is {}; expected token ids", Fields::dump(*value)));
    }
    const auto token = id.get<int32_t>();
    if (token >= 0 && std::find(eos.begin(), eos.end(), token) == eos.end()) eos.push_back(token);
  }
}

DType declared_dtype(const Fields& fields) {
  const std::string name = fields.text("dtype", fields.text("torch_dtype", "float32"));
  if (name == "bfloat16") return DType::kBF16;
  return name == "float16" ? DType::kF16 : DType::kF32;
}

constexpr const char* kExpected =
    "expected a Hugging Face model folder with config.json and *.safetensors, or a GGUF file";

/// A model that lies deeper: in a folder of this one, or as the hub's cache has it.
std::optional<fs::path> model_below(const fs::path& folder) {
  std::vector<fs::path> found;
  for (const fs::path& parent : {folder, folder / "snapshots"}) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(parent, ignored))
      if (is_there(entry.path() / "config.json")) found.push_back(entry.path());
  }
  return found.size() == 1 ? std::optional(found[0]) : std::nullopt;
}

/// Of a model without config.json.
std::string why_no_config(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::exists(folder, ignored)) return fmt::format("does not exist; {}", kExpected);
  if (!fs::is_directory(folder, ignored))
    return fmt::format("is a file and no GGUF; {}", kExpected);
  if (is_there(folder / "adapter_config.json"))
    return "is an adapter, not a model: merge it into the model that it was trained on (peft's "
           "merge_and_unload), and name the folder of that";
  if (const auto below = model_below(folder))
    return fmt::format("has no config.json; {} has: name that", below->string());
  return fmt::format("has no config.json; {}", kExpected);
}

}  // namespace

void fold_multipliers(const Multipliers& m, ConfigFile& config) {
  config.embedding_scale = static_cast<float>(m.embedding / m.residual);
  config.model.norm_eps = static_cast<float>(config.model.norm_eps / (m.residual * m.residual));
  config.attention_scale = static_cast<float>(m.attention);
  config.logit_scale = static_cast<float>(1 / m.logits);
}

ConfigFile read_config(const std::filesystem::path& folder) {
  const auto path = folder / "config.json";
  if (!is_there(path)) {
    throw Error(ErrorCode::kNotFound, fmt::format("{} {}", folder.string(), why_no_config(folder)));
  }
  const json object = read_json_file(path);
  const Fields fields(object, path.string());
  const Architecture& architecture = find_architecture(fields);
  refuse_variants(fields, architecture.name);

  ConfigFile out;
  ModelConfig& c = out.model;
  c.architecture = architecture.name;
  out.architecture = &architecture;
  read_shapes(fields, architecture, c);
  read_activation(fields, architecture, out);
  read_rope(fields, out);
  read_scales(fields, architecture, out);
  read_soft_caps(fields, architecture, out);
  read_sliding_window(fields, architecture, c);
  read_layer_types(fields, architecture, c);
  read_biases(fields, architecture, out);
  c.tied_embeddings = fields.flag("tie_word_embeddings", false);
  out.ties_unsaid = !fields.find("tie_word_embeddings");
  c.weights = declared_dtype(fields);
  if (const json* bos = fields.find("bos_token_id"); bos && bos->is_number_integer()) {
    c.bos = static_cast<int32_t>(fields.integer("bos_token_id", -1, kMaxCount));
  }
  add_ends(fields, c.eos);
  const auto generation = folder / "generation_config.json";
  if (is_there(generation)) {
    const json more = read_json_file(generation);
    add_ends(Fields(more, generation.string()), c.eos);
  }
  return out;
}

}  // namespace pith
