// The tensors of a GGUF file as Hugging Face names and orders them.

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>

#include "core/mapped_file.h"
#include "model/loaders/gguf_model.h"
#include "pith/error.h"

namespace pith {
namespace {

struct Name {
  std::string_view gguf, hugging_face;
};
constexpr std::array kNames = {
    Name{"token_embd", "model.embed_tokens"},
    Name{"output_norm", "model.norm"},
    Name{"output", "lm_head"},
};
constexpr std::array kLayerNames = {
    Name{"attn_q", "self_attn.q_proj"},      Name{"attn_k", "self_attn.k_proj"},
    Name{"attn_v", "self_attn.v_proj"},      Name{"attn_output", "self_attn.o_proj"},
    Name{"attn_q_norm", "self_attn.q_norm"}, Name{"attn_k_norm", "self_attn.k_norm"},
    Name{"ffn_gate", "mlp.gate_proj"},       Name{"ffn_up", "mlp.up_proj"},
    Name{"ffn_down", "mlp.down_proj"},
};
// Of architectures whose matrices are fused in Hugging Face's folders too.
constexpr std::array kFusedNames = {
    Name{"attn_qkv", "self_attn.qkv_proj"},
    Name{"ffn_up", "mlp.gate_up_proj"},
};
constexpr std::string_view kLayerPrefix = "blk.";

/// A tensor's name in parts: "blk.", layer, "attn_q", ".weight".
struct Parts {
  std::string layer;  ///< "" outside layers
  std::string_view stem, ending;
};

Parts parts_of(std::string_view name) {
  Parts parts;
  if (name.starts_with(kLayerPrefix)) {
    const size_t dot = name.find('.', kLayerPrefix.size());
    if (dot != std::string_view::npos) {
      parts.layer = name.substr(kLayerPrefix.size(), dot - kLayerPrefix.size());
      name.remove_prefix(dot + 1);
    }
  }
  const size_t dot = name.find('.');
  parts.stem = name.substr(0, dot);
  parts.ending = dot == std::string_view::npos ? std::string_view() : name.substr(dot);
  return parts;
}

/// Hugging Face's name; what has none keeps its own, and is refused where nobody asks for it.
std::string translated(const std::string& name, const Architecture& architecture) {
  const Parts parts = parts_of(name);
  if (parts.ending != ".weight" && parts.ending != ".bias") return name;
  if (parts.layer.empty()) {
    for (const Name& n : kNames) {
      if (parts.stem == n.gguf) return fmt::format("{}{}", n.hugging_face, parts.ending);
    }
    return name;
  }
  const auto of_layer = [&](std::string_view hugging_face) {
    return fmt::format("model.layers.{}.{}{}", parts.layer, hugging_face, parts.ending);
  };
  for (const Name& n : kFusedNames) {
    if (architecture.fused && parts.stem == n.gguf) return of_layer(n.hugging_face);
  }
  for (const Name& n : kLayerNames) {
    if (parts.stem == n.gguf) return of_layer(n.hugging_face);
  }
  const std::pair<std::string_view, const char*> norms[] = {
      {"attn_norm", architecture.attention_norm},
      {"post_attention_norm", architecture.attention_post_norm},
      {"ffn_norm", architecture.mlp_norm},
      {"post_ffw_norm", architecture.mlp_post_norm}};
  for (const auto& [gguf, hugging_face] : norms) {
    if (parts.stem == gguf && hugging_face) return of_layer(hugging_face);
  }
  return name;
}

}  // namespace

std::string gguf_name(const std::string& hugging_face, const Architecture& architecture) {
  // A model's names are few: each of GGUF's is translated until one fits.
  const size_t layer = hugging_face.find(".layers.");
  std::string prefix;
  if (layer != hugging_face.npos) {
    const size_t first = layer + 8;
    prefix = fmt::format("{}{}.", kLayerPrefix,
                         hugging_face.substr(first, hugging_face.find('.', first) - first));
  }
  const auto fits = [&](std::string_view stem) -> std::string {
    for (const char* ending : {".weight", ".bias"}) {
      std::string name = fmt::format("{}{}{}", prefix, stem, ending);
      if (translated(name, architecture) == hugging_face) return name;
    }
    return "";
  };
  for (const auto& names : {std::span<const Name>(kNames), std::span<const Name>(kFusedNames),
                            std::span<const Name>(kLayerNames)}) {
    for (const Name& n : names)
      if (std::string name = fits(n.gguf); !name.empty()) return name;
  }
  for (const char* norm : {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"})
    if (std::string name = fits(norm); !name.empty()) return name;
  return "";
}

namespace {

class Reader {
 public:
  Reader(Gguf file, const ConfigFile& config)
      : file_(std::make_shared<const Gguf>(std::move(file))),
        architecture_(*config.architecture),
        config_(config.model),
        permuted_(turns_neighbours(*file_->text("general.architecture"))),
        long_rope_(config.short_rope) {}

  ModelTensors read() {
    file_->release_keys();  // the config has been read, and a tokenizer opens the file anew
    for (const auto& [name, t] : file_->tensors()) {
      // RoPE's table in old files, and what read_gguf_config has taken.
      if (parts_of(name).stem == "attn_rot_embd" || name == kRopeDivisors) continue;
      if (long_rope_ && (name == kLongDivisors || name == kShortDivisors)) continue;
      ModelTensor tensor{name,  weight_type(t.type->id), t.type->name, t.shape, t.data, t.bytes,
                         t.file};
      if (parts_of(name).stem == "attn_qkv" && !architecture_.fused)
        take_apart(tensor);
      else
        add(translated(name, architecture_), std::move(tensor));
    }
    return ModelTensors(file_->source(), std::move(tensors_), file_,
                        [&architecture = architecture_](const std::string& name) {
                          return gguf_name(name, architecture);
                        });
  }

 private:
  size_t rows_of(const char* part) const {
    const int heads = part[0] == 'q' ? config_.query_heads : config_.kv_heads;
    return static_cast<size_t>(heads) * static_cast<size_t>(config_.head_dim);
  }

  /// Of one row, which moves as a whole. Throws kUnsupported where a block holds numbers of
  /// several, kCorrupt for more than two dimensions.
  static size_t bytes_of_row(const ModelTensor& t) {
    if (t.shape.size() == 1) return size_of(t.dense());
    if (t.shape.size() == 2) return row_bytes(t.weights(), t.shape[1]);
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: tensor '{}' has shape {}; expected [rows] or [rows, columns]",
                            t.file, t.name, t.shape_text()));
  }

  /// Rows q, then k, then v of one tensor.
  void take_apart(const ModelTensor& whole) {
    const Parts parts = parts_of(whole.name);
    const size_t rows = rows_of("q") + rows_of("k") + rows_of("v");
    if (whole.shape.front() != rows) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("{}: tensor '{}' has {} rows; queries, keys and values together have "
                              "{}",
                              whole.file, whole.name, whole.shape.front(), rows));
    }
    const size_t bytes = bytes_of_row(whole);
    size_t first = 0;
    for (const char* part : {"q", "k", "v"}) {
      ModelTensor t = whole;
      t.shape.front() = rows_of(part);
      t.data = whole.data + first * bytes;
      t.bytes = rows_of(part) * bytes;
      first += rows_of(part);
      add(fmt::format("model.layers.{}.self_attn.{}_proj{}", parts.layer, part, parts.ending), t);
    }
  }

  void add(const std::string& name, ModelTensor tensor) {
    if (permuted_) {
      for (const char* part : {"q", "k"}) {
        if (name.find(fmt::format(".self_attn.{}_proj.", part)) != std::string::npos)
          put_in_order(tensor, rows_of(part));
      }
    }
    const std::string in_file = tensor.name;
    if (tensors_.emplace(name, std::move(tensor)).second) return;
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: tensor '{}' is there twice, alone and fused with others",
                            file_->source(), in_file));
  }

  /// Row 2 i + b of a head becomes row b D / 2 + i: RoPE of these files turns neighbours.
  void put_in_order(const ModelTensor& tensor, size_t rows) {
    if (tensor.shape.front() != rows) return;  // refused with both shapes where it is asked for
    if (!file_->mapped()) throw Error(ErrorCode::kInternal, "a model in a file that is not mapped");
    const auto dim = static_cast<size_t>(config_.head_dim);
    const size_t bytes = bytes_of_row(tensor);
    std::vector<std::byte> stored(dim * bytes);
    rewrite_mapped({tensor.data, tensor.bytes}, [&](std::span<std::byte> matrix) {
      for (; !matrix.empty(); matrix = matrix.subspan(stored.size())) {
        std::memcpy(stored.data(), matrix.data(), stored.size());
        for (size_t i = 0; i < dim; ++i) {
          const size_t from = 2 * (i % (dim / 2)) + i / (dim / 2);
          std::memcpy(matrix.data() + i * bytes, stored.data() + from * bytes, bytes);
        }
      }
    });
  }

  std::shared_ptr<const Gguf> file_;
  const Architecture& architecture_;
  const ModelConfig& config_;
  bool permuted_, long_rope_;
  ModelTensors::Map tensors_;
};

}  // namespace

ModelTensors read_gguf_tensors(Gguf file, const ConfigFile& config) {
  return Reader(std::move(file), config).read();
}

}  // namespace pith
