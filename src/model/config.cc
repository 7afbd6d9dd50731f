#include "model/config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "core/json_file.h"
#include "model/architectures.h"
#include "pith/error.h"

namespace pith {
namespace {

using nlohmann::json;

constexpr int64_t kMaxCount = int64_t{1} << 24;    // heads, widths, vocabulary
constexpr int64_t kMaxContext = int64_t{1} << 31;  // positions
constexpr int kMaxLayers = 4096;
constexpr int kMaxHeadDim = 512;
constexpr int64_t kMistralWindow = 4096;  // where Mistral's config does not mention it at all

/// A JSON object with typed reads that name file and field when they fail.
class Fields {
 public:
  Fields(const json& object, std::string where) : object_(object), where_(std::move(where)) {}

  /// Null counts as absent, as in transformers.
  const json* find(const char* name) const {
    const auto found = object_.find(name);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const char* name) const { return object_.contains(name); }
  [[noreturn]] void corrupt(const char* name, const std::string& problem) const {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: '{}' {}", where_, name, problem));
  }
  [[noreturn]] void unsupported(const std::string& problem) const {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", where_, problem));
  }
  const json& need(const char* name) const {
    if (const json* value = find(name)) return *value;
    corrupt(name, "is missing");
  }
  int64_t integer(const char* name, int64_t first, int64_t last) const {
    const json& value = need(name);
    if (!value.is_number_integer() || value < first || value > last) {
      corrupt(name, fmt::format("is {}; expected a whole number from {} to {}", dump(value), first,
                                last));
    }
    return value.get<int64_t>();
  }
  double number(const char* name, double above, double last) const {
    const json& value = need(name);
    // JSON has no NaN or infinity, and this comparison would refuse them too.
    if (!value.is_number() || !(value.get<double>() > above && value.get<double>() <= last)) {
      corrupt(name, fmt::format("is {}; expected a number above {} and at most {}", dump(value),
                                above, last));
    }
    return value.get<double>();
  }
  bool flag(const char* name, bool otherwise) const {
    const json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_boolean())
      corrupt(name, fmt::format("is {}; expected true or false", dump(*value)));
    return value->get<bool>();
  }
  std::string text(const char* name, const std::string& otherwise) const {
    const json* value = find(name);
    if (!value) return otherwise;
    if (!value->is_string()) corrupt(name, fmt::format("is {}; expected a string", dump(*value)));
    return value->get<std::string>();
  }
  static std::string dump(const json& value) {
    std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
    return text.size() > 80 ? text.substr(0, 80) + "..." : text;
  }
  const std::string& where() const { return where_; }

 private:
  const json& object_;
  std::string where_;
};

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
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {
    fields.unsupported(fmt::format("hidden_act is '{}'; supported: silu", activation));
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
  c.norm_eps = 1e-6f;
  if (fields.find("rms_norm_eps"))
    c.norm_eps = static_cast<float>(fields.number("rms_norm_eps", 0, 1));
}

void read_rope(const Fields& fields, ConfigFile& out) {
  const json* parameters = fields.find("rope_parameters");
  const json* scaling = parameters ? parameters : fields.find("rope_scaling");
  const char* name = parameters ? "rope_parameters" : "rope_scaling";
  if (scaling && !scaling->is_object()) {
    fields.corrupt(name, fmt::format("is {}; expected an object", Fields::dump(*scaling)));
  }
  const json none = json::object();
  const Fields rope(scaling ? *scaling : none, fields.where() + ": " + name);
  const Fields& theta = rope.find("rope_theta") ? rope : fields;
  out.model.rope_theta = 10000;
  if (theta.find("rope_theta")) out.model.rope_theta = theta.number("rope_theta", 0, 1e15);
  for (const Fields* f : {&fields, &rope}) {
    if (f->find("partial_rotary_factor") && f->number("partial_rotary_factor", 0, 1) != 1) {
      fields.unsupported("partial_rotary_factor is not 1; supported: RoPE over the whole head");
    }
  }
  if (!scaling) return;
  for (const auto& [key, value] : scaling->items()) {
    if (value.is_object()) {
      fields.unsupported(
          fmt::format("RoPE of its own per layer type ('{}'); supported: one for all "
                      "layers",
                      key));
    }
  }
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  if (type == "default") return;
  if (type == "linear") {
    out.rope.linear = true;
    out.rope.factor = static_cast<float>(rope.number("factor", 0, 1e6));
    return;
  }
  if (type != "llama3") {
    fields.unsupported(fmt::format("RoPE scaling '{}'; supported: default, linear, llama3", type));
  }
  out.rope.factor = static_cast<float>(rope.number("factor", 0, 1e6));
  out.rope.low_freq_factor = static_cast<float>(rope.number("low_freq_factor", 0, 1e6));
  out.rope.high_freq_factor = static_cast<float>(rope.number("high_freq_factor", 0, 1e6));
  out.rope.original_context = rope.integer("original_max_position_embeddings", 1, kMaxContext);
  if (out.rope.high_freq_factor <= out.rope.low_freq_factor) {
    rope.corrupt("high_freq_factor", "is not above 'low_freq_factor'");
  }
}

/// Which layers see only the newest positions, as transformers decides it: the list layer_types, or
/// else the architecture's own rule.
void read_sliding_window(const Fields& fields, const Architecture& architecture, ModelConfig& c) {
  c.sliding_window.assign(static_cast<size_t>(c.layers), 0);
  if (architecture.sliding == Sliding::kNever) return;
  if (architecture.sliding == Sliding::kByFlag && !fields.flag("use_sliding_window", false)) return;
  int64_t window = kMistralWindow;
  if (fields.has("sliding_window") || architecture.sliding != Sliding::kAlways) {
    if (!fields.find("sliding_window")) return;
    window = fields.integer("sliding_window", 1, kMaxContext);
  }
  size_t first = 0;
  if (architecture.sliding == Sliding::kByFlag && !fields.find("layer_types")) {
    first = static_cast<size_t>(fields.integer("max_window_layers", 0, kMaxLayers));
  }
  for (size_t l = first; l < c.sliding_window.size(); ++l) c.sliding_window[l] = window;
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
  out.model.qk_norm = architecture.qk_norm;
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

}  // namespace

ConfigFile read_config(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    throw Error(ErrorCode::kNotFound,
                fmt::format("{} is not a folder; expected a Hugging Face model folder with "
                            "config.json and *.safetensors",
                            folder.string()));
  }
  const auto path = folder / "config.json";
  const json object = read_json_file(path);
  const Fields fields(object, path.string());
  const Architecture& architecture = find_architecture(fields);
  refuse_variants(fields, architecture.name);

  ConfigFile out;
  ModelConfig& c = out.model;
  c.architecture = architecture.name;
  read_shapes(fields, architecture, c);
  read_rope(fields, out);
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
  if (std::filesystem::exists(generation, ignored)) {
    const json more = read_json_file(generation);
    add_ends(Fields(more, generation.string()), c.eos);
  }
  return out;
}

}  // namespace pith
