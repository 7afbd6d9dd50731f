// The config of a GGUF file, from its keys ARCHITECTURE.name.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>

#include "model/loaders/architectures.h"
#include "model/loaders/config_fields.h"
#include "model/loaders/gguf_model.h"
#include "pith/error.h"

namespace pith {
namespace {

constexpr int64_t kMaxCount = int64_t{1} << 24;  // heads, widths, vocabulary
constexpr int64_t kMaxLayers = 4096;
constexpr int64_t kMaxHeadDim = 512;

/// GGUF's name of an architecture, and Hugging Face's. Mistral and SmolLM files are "llama".
struct Row {
  const char* name;
  const char* architecture;
  bool turns_neighbours = false;
  /// Another model that goes by this name and is told by its sliding window.
  const char* with_window = nullptr;
  int scaled_by_width = 0;  ///< layers of the one size whose scores are scaled by its own width
};
constexpr std::array kRows = {
    Row{.name = "llama", .architecture = "LlamaForCausalLM", .turns_neighbours = true},
    Row{.name = "qwen2", .architecture = "Qwen2ForCausalLM"},
    Row{.name = "qwen3", .architecture = "Qwen3ForCausalLM"},
    Row{.name = "gemma2", .architecture = "Gemma2ForCausalLM", .scaled_by_width = 46},
    Row{.name = "gemma3", .architecture = "Gemma3ForCausalLM", .scaled_by_width = 62},
    Row{.name = "phi3", .architecture = "Phi3ForCausalLM"},
    Row{.name = "olmo2", .architecture = "Olmo2ForCausalLM", .with_window = "OLMo 3"},
    Row{.name = "granite", .architecture = "GraniteForCausalLM", .turns_neighbours = true},
};

/// Keys of one architecture: absent ones are given a default, or refused.
class Keys {
 public:
  Keys(const Gguf& file, std::string_view architecture) : file_(file), prefix_(architecture) {}

  std::string name(const char* key) const { return fmt::format("{}.{}", prefix_, key); }
  bool has(const char* key) const { return file_.has(name(key)); }
  std::optional<int64_t> find(const char* key, int64_t first, int64_t last) const {
    return file_.integer(name(key), first, last);
  }
  int64_t need(const char* key, int64_t first, int64_t last) const {
    if (const auto value = find(key, first, last)) return *value;
    corrupt(key, "is missing");
  }
  std::optional<double> number(const char* key) const { return file_.number(name(key)); }
  /// One for all layers, or a list of `layers` equal ones.
  std::optional<int64_t> of_layers(const char* key, int64_t layers) const {
    const auto found = file_.keys().find(name(key));
    if (found == file_.keys().end() || !found->second.array) return find(key, 1, kMaxCount);
    const auto list = *file_.integers(name(key), 1, kMaxCount);
    if (list.size() != static_cast<size_t>(layers)) {
      corrupt(key, fmt::format("has {} numbers for {} layers", list.size(), layers));
    }
    if (std::adjacent_find(list.begin(), list.end(), std::not_equal_to<>()) != list.end()) {
      unsupported(
          fmt::format("key '{}' differs from layer to layer; supported: one for all", name(key)));
    }
    return list.front();
  }
  [[noreturn]] void corrupt(const char* key, const std::string& problem) const {
    file_.corrupt(name(key), problem);
  }
  [[noreturn]] void unsupported(const std::string& problem) const {
    throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", file_.source(), problem));
  }
  const Gguf& file() const { return file_; }

 private:
  const Gguf& file_;
  std::string prefix_;
};

/// The table of architectures as these files store them: what Gemma 3 adds to norms is in them.
std::span<const Architecture> stored_architectures() {
  static const std::vector<Architecture> kStored = [] {
    const auto all = architectures();
    std::vector<Architecture> stored(all.begin(), all.end());
    for (Architecture& a : stored) a.norm_offset = 0;
    return stored;
  }();
  return kStored;
}

const Row& find_row(const Gguf& file) {
  const auto name = file.text("general.architecture");
  if (!name) file.corrupt("general.architecture", "is missing");
  std::vector<std::string> names;
  for (const Row& row : kRows) {
    names.emplace_back(row.name);
    if (*name == row.name) return row;
  }
  if (*name == "clip") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{} is the part of a model that reads images (mmproj); name the file "
                            "of its language model",
                            file.source()));
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("{}: architecture '{}' is not supported in GGUF files; supported: {} "
                          "(Llama 2 to 3.2, Mistral and SmolLM 1 and 2 are 'llama')",
                          file.source(), *name, fmt::join(names, ", ")));
}

const Architecture& find_architecture(const Row& row) {
  for (const Architecture& a : stored_architectures()) {
    if (std::string_view(a.name) == row.architecture) return a;
  }
  throw Error(ErrorCode::kInternal, fmt::format("no architecture {}", row.architecture));
}

/// Variants that change the computation in ways the forward pass does not know.
void refuse_variants(const Keys& keys, const Row& row, const Architecture& architecture) {
  if (keys.find("expert_count", 0, kMaxCount).value_or(0) > 0) {
    keys.unsupported("a mixture of experts; supported: dense models");
  }
  const auto neutral = [&](const char* key, double value) {
    const double found = keys.number(key).value_or(value);
    if (found != value) {
      keys.unsupported(fmt::format("{} is {}; supported: {}", keys.name(key), found, value));
    }
  };
  if (architecture.attention_soft_cap == 0) {
    neutral("attn_logit_softcapping", 0);
    neutral("final_logit_softcapping", 0);
  }
  if (!architecture.multipliers) {
    neutral("logit_scale", 1);
    neutral("residual_scale", 1);
    neutral("embedding_scale", 1);
    neutral("attention.scale", 0);
  }
  if (row.with_window && keys.find("attention.sliding_window", 0, kMaxContext).value_or(0) > 0) {
    keys.unsupported(
        fmt::format("a sliding window makes this {}, which is not supported", row.with_window));
  }
  if (!keys.file().flag(keys.name("attention.causal")).value_or(true)) {
    keys.unsupported(
        fmt::format("{} is false; supported: causal attention", keys.name("attention.causal")));
  }
  if (keys.file().integer("general.quantization_version", 0, kMaxCount).value_or(2) != 2) {
    keys.unsupported("general.quantization_version is not 2; convert the model again");
  }
}

void read_heads(const Keys& keys, ModelConfig& c) {
  const auto heads = keys.of_layers("attention.head_count", c.layers);
  if (!heads) keys.corrupt("attention.head_count", "is missing");
  c.query_heads = static_cast<int>(*heads);
  c.kv_heads =
      static_cast<int>(keys.of_layers("attention.head_count_kv", c.layers).value_or(*heads));
  if (c.query_heads % c.kv_heads != 0) {
    keys.unsupported(
        fmt::format("{} ({}) is no multiple of {} ({}): so many query heads cannot "
                    "share so many KV heads evenly",
                    keys.name("attention.head_count"), c.query_heads,
                    keys.name("attention.head_count_kv"), c.kv_heads));
  }
  auto dim = keys.find("attention.key_length", 1, kMaxCount);
  if (!dim && c.hidden % c.query_heads != 0) {
    keys.corrupt("embedding_length", fmt::format("({}) is no multiple of attention.head_count "
                                                 "({}), and there is no attention.key_length",
                                                 c.hidden, c.query_heads));
  }
  c.head_dim = static_cast<int>(dim.value_or(c.hidden / c.query_heads));
  if (c.head_dim % 16 != 0 || c.head_dim > kMaxHeadDim) {
    keys.unsupported(fmt::format("head_dim, {}, is {}; supported: multiples of 16 up to {}",
                                 dim ? keys.name("attention.key_length")
                                     : keys.name("embedding_length") + " by attention.head_count",
                                 c.head_dim, kMaxHeadDim));
  }
  const auto values = keys.find("attention.value_length", 1, kMaxCount);
  if (values.value_or(c.head_dim) != c.head_dim) {
    keys.unsupported(fmt::format("keys of {} and values of {} channels; supported: equal ones",
                                 c.head_dim, *values));
  }
}

void read_rotated(const Keys& keys, ConfigFile& out) {
  const int64_t dim = out.model.head_dim;
  const int64_t rotated = keys.find("rope.dimension_count", 1, kMaxCount).value_or(dim);
  if (rotated == dim) return;
  if (!out.architecture->partial_rotary || rotated > dim || rotated % 2 != 0) {
    keys.unsupported(
        fmt::format("RoPE turns {} of {} channels; supported: the whole head, or an "
                    "even number of channels of a Phi 3",
                    rotated, dim));
  }
  out.rope.rotated = static_cast<size_t>(rotated);
}

void read_rope(const Keys& keys, ConfigFile& out) {
  read_rotated(keys, out);
  out.model.rope_theta = keys.number("rope.freq_base").value_or(10000);
  if (!(out.model.rope_theta > 0)) keys.corrupt("rope.freq_base", "is not positive");
  const std::string type_key = keys.name("rope.scaling.type");
  const std::string_view type = keys.file().text(type_key).value_or("linear");
  const bool lists = keys.file().find(kLongDivisors) != nullptr;
  if (type == "none" || (type == "longrope" && lists)) return;
  if (type != "linear") {
    keys.unsupported(
        fmt::format("RoPE scaling '{}'; supported: none, linear, Llama 3's in {}, and LongRoPE's "
                    "in {}",
                    type, kRopeDivisors, kLongDivisors));
  }
  const auto old = keys.number("rope.scale_linear");
  const double factor = keys.number("rope.scaling.factor").value_or(old.value_or(1));
  if (!(factor > 0 && factor <= 1e6)) {
    keys.corrupt("rope.scaling.factor", fmt::format("is {}; expected a number above 0", factor));
  }
  out.rope.linear = factor != 1;
  out.rope.factor = static_cast<float>(factor);
}

std::vector<double> divisors_in(const Gguf& file, const GgufTensor& t, size_t pairs) {
  if (t.type->id != static_cast<uint32_t>(WeightType::kF32) || t.shape.size() != 1 ||
      t.shape[0] != pairs) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: tensor '{}' is {} {}; expected F32 [{}]", file.source(), t.name,
                            t.type->name, t.shape_text(), pairs));
  }
  std::vector<float> divisors(pairs);
  std::memcpy(divisors.data(), t.data, t.bytes);
  for (const float x : divisors) {
    if (std::isfinite(x) && x > 0) continue;
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: tensor '{}' holds {}; expected numbers above "
                                                 "0",
                                                 file.source(), t.name, x));
  }
  return {divisors.begin(), divisors.end()};
}

/// Scaling by lists of numbers: Llama 3.1 and later have one, LongRoPE (Phi 3) two, of which the
/// length of the context chooses.
void read_divisors(const Keys& keys, ConfigFile& out) {
  const Gguf& file = keys.file();
  const auto dim = static_cast<size_t>(out.model.head_dim);
  const size_t pairs = (out.rope.rotated == 0 ? dim : out.rope.rotated) / 2;
  if (const GgufTensor* one = file.find(kRopeDivisors)) {
    out.rope.divisors = divisors_in(file, *one, pairs);
  }
  const GgufTensor* in_long = file.find(kLongDivisors);
  const GgufTensor* in_short = file.find(kShortDivisors);
  if (!in_long || !in_short || !out.architecture->partial_rotary) return;  // refused as left over
  out.rope.original_context = keys.need("rope.scaling.original_context_length", 2, kMaxContext);
  out.short_rope = out.rope;
  out.rope.divisors = divisors_in(file, *in_long, pairs);
  out.short_rope->divisors = divisors_in(file, *in_short, pairs);
  const double magnitude = keys.number("rope.scaling.attn_factor").value_or(1);
  if (!(magnitude > 0 && magnitude <= 1e6)) {
    keys.corrupt("rope.scaling.attn_factor",
                 fmt::format("is {}; expected a number above 0", magnitude));
  }
  out.rope_magnitude = static_cast<float>(magnitude);
}

/// Files of "llama" have no window, or one that is not meant: Mistral 7B v0.1's say nothing, and
/// its attention is full. Phi 3's is 0 where there is none.
void read_sliding_window(const Keys& keys, ConfigFile& out) {
  ModelConfig& c = out.model;
  c.sliding_window.assign(static_cast<size_t>(c.layers), 0);
  const Sliding sliding = out.architecture->sliding;
  if (sliding != Sliding::kPattern && sliding != Sliding::kAlways) return;
  const auto window = keys.find("attention.sliding_window", 0, kMaxContext);
  if (sliding == Sliding::kAlways) {
    c.sliding_window.assign(static_cast<size_t>(c.layers), window.value_or(0));
    return;
  }
  if (!window) keys.corrupt("attention.sliding_window", "is missing");
  constexpr const char* kPattern = "attention.sliding_window_pattern";
  const auto found = keys.file().keys().find(keys.name(kPattern));
  if (found != keys.file().keys().end() && found->second.array) {
    const auto slides = *keys.file().flags(keys.name(kPattern));
    if (slides.size() != c.sliding_window.size()) {
      keys.corrupt(kPattern, fmt::format("has {} flags for {} layers", slides.size(), c.layers));
    }
    for (size_t l = 0; l < slides.size(); ++l) c.sliding_window[l] = slides[l] ? *window : 0;
  } else {
    const auto period =
        static_cast<size_t>(keys.find(kPattern, 1, kMaxLayers)
                                .value_or(static_cast<int64_t>(out.architecture->window_pattern)));
    for (size_t l = 0; l < c.sliding_window.size(); ++l)
      c.sliding_window[l] = (l + 1) % period == 0 ? 0 : *window;
  }
  if (out.architecture->sliding_theta == 0) return;
  out.sliding_theta = keys.number("rope.freq_base_swa").value_or(out.architecture->sliding_theta);
  if (!(out.sliding_theta > 0)) keys.corrupt("rope.freq_base_swa", "is not positive");
}

/// Granite's factors. Converters leave those out that are 0, which stands for "none".
void read_multipliers(const Keys& keys, ConfigFile& out) {
  const auto factor = [&](const char* key, double otherwise) {
    const double found = keys.number(key).value_or(0);
    if (!(found >= 0 && found <= 1e6)) {
      keys.corrupt(key, fmt::format("is {}; expected a number from 0 to 1e6", found));
    }
    return found == 0 ? otherwise : found;
  };
  fold_multipliers({.embedding = factor("embedding_scale", 1),
                    .residual = factor("residual_scale", 1),
                    .attention = factor("attention.scale", 0),
                    .logits = factor("logit_scale", 1)},
                   out);
}

/// Gemma's, which its files leave to the reader.
void read_scales(const Row& row, ConfigFile& out) {
  const ModelConfig& c = out.model;
  if (out.architecture->embedding_by_width) {
    out.embedding_scale = std::sqrt(static_cast<float>(c.hidden));
  }
  if (out.architecture->query_scalar && c.layers == row.scaled_by_width) {
    out.attention_scale =
        1 / std::sqrt(static_cast<float>(c.hidden) / static_cast<float>(c.query_heads));
  }
}

/// 0: none.
void read_soft_caps(const Keys& keys, ConfigFile& out) {
  const auto read = [&](const char* key, double otherwise) {
    constexpr double kLeast = 1e-3, kMost = 1e6;
    const double cap = keys.number(key).value_or(otherwise);
    if (cap != 0 && !(cap >= kLeast && cap <= kMost))
      keys.corrupt(key, fmt::format("is {}; from {} to {}, or 0 for none", cap, kLeast, kMost));
    return static_cast<float>(cap);
  };
  out.model.attention_soft_cap =
      read("attn_logit_softcapping", out.architecture->attention_soft_cap);
  out.logit_soft_cap = read("final_logit_softcapping", out.architecture->logit_soft_cap);
}

void read_vocabulary(const Keys& keys, ModelConfig& c) {
  const Gguf& file = keys.file();
  const auto found = file.keys().find("tokenizer.ggml.tokens");
  const GgufTensor* table = file.find("token_embd.weight");
  const int64_t rows = table ? static_cast<int64_t>(table->shape.front()) : 0;
  int64_t tokens = rows;
  if (found != file.keys().end()) tokens = static_cast<int64_t>(found->second.count);
  const int64_t vocab = keys.find("vocab_size", 1, kMaxCount).value_or(tokens);
  if (vocab < 1 || vocab > kMaxCount) {
    file.corrupt("tokenizer.ggml.tokens", fmt::format("is a vocabulary of {} tokens", vocab));
  }
  c.vocab = static_cast<int>(vocab);
  const auto id = [&](const char* name) {
    return static_cast<int32_t>(
        file.integer(fmt::format("tokenizer.ggml.{}_token_id", name), 0, vocab - 1).value_or(-1));
  };
  c.bos = id("bos");
  for (const char* end : {"eos", "eot", "eom"}) {
    const int32_t token = id(end);
    const bool known = std::find(c.eos.begin(), c.eos.end(), token) != c.eos.end();
    if (token >= 0 && !known) c.eos.push_back(token);
  }
}

}  // namespace

bool is_gguf_path(const std::filesystem::path& path) {
  return path.extension() == ".gguf" || Gguf::recognises(path);
}

bool holds_tokenizer(const std::filesystem::path& path) {
  return is_gguf_path(path) && Gguf::open(path).has("tokenizer.ggml.model");
}

std::string gguf_architecture(const Architecture& architecture) {
  const std::string_view name = architecture.name;
  if (name == "MistralForCausalLM") return "llama";
  for (const Row& row : kRows)
    if (name == row.architecture) return row.name;
  return "";
}

bool turns_neighbours(std::string_view architecture) {
  return std::any_of(kRows.begin(), kRows.end(), [&](const Row& row) {
    return row.turns_neighbours && architecture == row.name;
  });
}

ConfigFile read_gguf_config(const Gguf& file) {
  const Row& row = find_row(file);
  const Architecture& architecture = find_architecture(row);
  const Keys keys(file, row.name);
  refuse_variants(keys, row, architecture);
  ConfigFile out;
  ModelConfig& c = out.model;
  c.architecture = architecture.name;
  out.architecture = &architecture;
  c.layers = static_cast<int>(keys.need("block_count", 1, kMaxLayers));
  c.hidden = static_cast<int>(keys.need("embedding_length", 1, kMaxCount));
  const auto inner = keys.of_layers("feed_forward_length", c.layers);
  if (!inner) keys.corrupt("feed_forward_length", "is missing");
  c.intermediate = static_cast<int>(*inner);
  c.context = keys.need("context_length", 1, kMaxContext);
  read_heads(keys, c);
  read_rope(keys, out);
  read_divisors(keys, out);
  const auto eps = keys.number("attention.layer_norm_rms_epsilon");
  if (!eps) keys.corrupt("attention.layer_norm_rms_epsilon", "is missing");
  if (!(*eps > 0 && *eps <= 1)) {
    keys.corrupt("attention.layer_norm_rms_epsilon", fmt::format("is {}", *eps));
  }
  c.norm_eps = static_cast<float>(*eps);
  read_sliding_window(keys, out);
  if (architecture.default_activation == std::string_view("gelu_pytorch_tanh"))
    out.activation = Activation::kGeluTanh;
  read_scales(row, out);
  read_soft_caps(keys, out);
  if (architecture.multipliers) read_multipliers(keys, out);
  c.qk_norm = architecture.qk_norm != QkNorm::kNone;
  read_vocabulary(keys, c);
  const auto has = [&](const char* name) { return file.find(name) != nullptr; };
  c.qkv_bias = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
  out.output_bias = has("blk.0.attn_output.bias");
  out.mlp_bias = has("blk.0.ffn_gate.bias");
  c.tied_embeddings = !has("output.weight");
  return out;
}

}  // namespace pith
