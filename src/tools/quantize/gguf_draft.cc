#include "tools/quantize/gguf_draft.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/input_file.h"
#include "model/loaders/gguf_model.h"
#include "model/loaders/weights.h"
#include "pith/error.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& model, const std::string& what) {
  throw Error(ErrorCode::kUnsupported, fmt::format("{}: {}", model.string(), what));
}

class FolderDraft {
 public:
  FolderDraft(const fs::path& folder, const Model::Weights& weights)
      : folder_(folder),
        weights_(weights),
        config_(weights.config),
        architecture_(*config_.architecture),
        name_(gguf_architecture(architecture_)) {
    if (name_.empty())
      refuse(folder, fmt::format("GGUF files of {} are not written", architecture_.name));
  }

  GgufDraft make() {
    draft_.keys.text("general.architecture", name_);
    draft_.keys.text("general.name", fs::absolute(folder_).lexically_normal().filename().string());
    add_shape_keys();
    add_rope();
    add_scale_keys();
    check_keys();
    for (const auto& [name, tensor] : weights_.tensors.tensors()) add(name, tensor);
    return std::move(draft_);
  }

 private:
  std::string key(const char* name) const { return fmt::format("{}.{}", name_, name); }
  void u32(const char* name, int64_t value) {
    draft_.keys.u32(key(name), static_cast<uint32_t>(value));
  }
  void f32(const char* name, double value) {
    draft_.keys.f32(key(name), static_cast<float>(value));
  }

  void add_shape_keys() {
    const ModelConfig& c = config_.model;
    u32("block_count", c.layers);
    u32("context_length", c.context);
    u32("embedding_length", c.hidden);
    u32("feed_forward_length", c.intermediate);
    u32("attention.head_count", c.query_heads);
    u32("attention.head_count_kv", c.kv_heads);
    u32("attention.key_length", c.head_dim);
    u32("attention.value_length", c.head_dim);
    u32("vocab_size", c.vocab);
    f32("attention.layer_norm_rms_epsilon", c.norm_eps);
  }

  void add_rope() {
    const ModelConfig& c = config_.model;
    const RopeScaling& rope = config_.rope;
    const auto dim = static_cast<size_t>(c.head_dim);
    u32("rope.dimension_count", static_cast<int64_t>(rope.rotated == 0 ? dim : rope.rotated));
    f32("rope.freq_base", c.rope_theta);
    if (rope.linear) {
      draft_.keys.text(key("rope.scaling.type"), "linear");
      f32("rope.scaling.factor", rope.factor);
    } else if (config_.short_rope) {
      u32("rope.scaling.original_context_length", rope.original_context);
      f32("rope.scaling.attn_factor", config_.rope_magnitude);
      add_divisors(kLongDivisors, rope);
      add_divisors(kShortDivisors, *config_.short_rope);
    } else if (rope.factor != 1 || !rope.divisors.empty()) {
      add_divisors(kRopeDivisors, rope);
    }
  }

  /// The divisors of each frequency under a scaling.
  void add_divisors(const char* name, const RopeScaling& scaling) {
    const auto dim = static_cast<size_t>(config_.model.head_dim);
    RopeScaling plain;
    plain.rotated = scaling.rotated;
    const Rope without(dim, config_.model.rope_theta, plain);
    const Rope with(dim, config_.model.rope_theta, scaling);
    const size_t pairs = (scaling.rotated == 0 ? dim : scaling.rotated) / 2;
    DraftTensor t{.name = name, .shape = {pairs}};
    for (size_t i = 0; i < pairs; ++i)
      t.own.push_back(static_cast<float>(without.frequencies()[i] / with.frequencies()[i]));
    draft_.tensors.push_back(std::move(t));
  }

  void add_scale_keys() {
    const auto& windows = config_.model.sliding_window;
    const int64_t window = windows.empty() ? 0 : *std::max_element(windows.begin(), windows.end());
    if (architecture_.sliding == Sliding::kPattern) {
      u32("attention.sliding_window", window);
      std::vector<bool> slides;
      for (const int64_t w : windows) slides.push_back(w > 0);
      draft_.keys.flags(key("attention.sliding_window_pattern"), slides);
      if (config_.sliding_theta > 0) f32("rope.freq_base_swa", config_.sliding_theta);
    } else if (name_ == "phi3") {
      u32("attention.sliding_window", window);
    }
    if (architecture_.attention_soft_cap > 0) {
      f32("attn_logit_softcapping", config_.model.attention_soft_cap);
      f32("final_logit_softcapping", config_.logit_soft_cap);
    }
    if (!architecture_.multipliers) return;
    // The residual stream is in units of its multiplier already (fold_multipliers).
    f32("embedding_scale", config_.embedding_scale);
    f32("attention.scale", config_.attention_scale);
    f32("logit_scale", 1 / double{config_.logit_scale});
  }

  /// The keys must give the config back: whatever they cannot say is found here.
  void check_keys() const {
    const std::string head = gguf_head(draft_.keys, {});
    const ConfigFile back =
        read_gguf_config(Gguf::parse(std::as_bytes(std::span(head)), folder_.string()));
    const auto same = [&](const char* what, double wanted, double found) {
      if (std::abs(wanted - found) <= 1e-6 * std::abs(wanted)) return;
      refuse(folder_, fmt::format("{} is {}, and a GGUF file of '{}' would be read as {}; this "
                                  "variant cannot be written",
                                  what, wanted, name_, found));
    };
    const ModelConfig &a = config_.model, &b = back.model;
    same("head_dim", a.head_dim, b.head_dim);
    same("rope_theta", a.rope_theta, b.rope_theta);
    same("the norms' eps", a.norm_eps, b.norm_eps);
    same("the factor of embeddings", config_.embedding_scale, back.embedding_scale);
    same("the factor of scores", effective_scale(config_), effective_scale(back));
    same("the soft cap of scores", a.attention_soft_cap, b.attention_soft_cap);
    same("the soft cap of logits", config_.logit_soft_cap, back.logit_soft_cap);
    same("the factor of logits", config_.logit_scale, back.logit_scale);
    same("the activation", static_cast<int>(config_.activation), static_cast<int>(back.activation));
    same("the sliding layers' rope_theta", config_.sliding_theta, back.sliding_theta);
    for (size_t l = 0; l < a.sliding_window.size(); ++l) {
      same(fmt::format("the sliding window of layer {}", l).c_str(),
           static_cast<double>(a.sliding_window[l]), static_cast<double>(b.sliding_window[l]));
    }
  }
  static double effective_scale(const ConfigFile& c) {
    return c.attention_scale == 0 ? 1 / std::sqrt(double(c.model.head_dim)) : c.attention_scale;
  }

  void add(const std::string& name, const ModelTensor& tensor) {
    if (name.ends_with(".rotary_emb.inv_freq")) return;
    if (name == "lm_head.weight" && config_.model.tied_embeddings) return;
    DraftTensor t{.name = gguf_name(name, architecture_),
                  .type = tensor.weights(),
                  .shape = tensor.shape,
                  .data = tensor.data};
    if (t.name.empty()) refuse(folder_, fmt::format("GGUF has no name for tensor '{}'", name));
    if (turns_neighbours(name_)) {
      if (name.find(".q_proj.") != name.npos)
        t.turned_heads = static_cast<size_t>(config_.model.query_heads);
      if (name.find(".k_proj.") != name.npos)
        t.turned_heads = static_cast<size_t>(config_.model.kv_heads);
    }
    if (t.name.find("norm") != t.name.npos) t.offset = architecture_.norm_offset;
    draft_.tensors.push_back(std::move(t));
  }

  const fs::path& folder_;
  const Model::Weights& weights_;
  const ConfigFile& config_;
  const Architecture& architecture_;
  std::string name_;
  GgufDraft draft_;
};

}  // namespace

GgufDraft draft_of_gguf(const fs::path& path) {
  const auto file = std::make_shared<const Gguf>(Gguf::open(path));
  GgufDraft out;
  for (const auto& [name, value] : file->keys()) {
    const bool of_this_file = name.starts_with("split.") || name == "general.alignment" ||
                              name == "general.file_type" || name == "general.quantization_version";
    if (!of_this_file) out.keys.copy(name, value);
  }
  for (const auto& [name, t] : file->tensors()) {
    const auto type = weight_type(t.type->id);
    if (!type)
      refuse(path, fmt::format("tensor '{}' is of type {}, which is not read", name, t.type->name));
    out.tensors.push_back({.name = name, .type = *type, .shape = t.shape, .data = t.data});
  }
  out.files = file;
  return out;
}

GgufDraft draft_of_folder(const fs::path& folder, const std::string& chat_template) {
  const std::shared_ptr<const Model> model = Model::load(folder);
  GgufDraft out = FolderDraft(folder, model->weights()).make();
  if (is_there(folder / "tokenizer.json") || is_there(folder / "tokenizer.model"))
    add_tokenizer_keys(folder, model->config().vocab, out.keys);
  if (!chat_template.empty()) out.keys.text("tokenizer.chat_template", chat_template);
  out.files = model;
  return out;
}

}  // namespace pith
