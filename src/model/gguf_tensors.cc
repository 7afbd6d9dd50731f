// The tensors of a GGUF file as Hugging Face names and orders them.

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "model/gguf_model.h"
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

/// Returns whole pages of a mapped file to the system: their bytes have been copied.
void release_pages(const std::byte* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  if (first < last) ::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
}

/// What the tensors point into.
struct Files {
  explicit Files(Gguf f) : file(std::move(f)) {}
  Gguf file;
  std::vector<std::unique_ptr<std::byte[]>> copies;
};

class Reader {
 public:
  Reader(Gguf file, const ConfigFile& config)
      : files_(std::make_shared<Files>(std::move(file))),
        architecture_(*config.architecture),
        config_(config.model),
        permuted_(*files_->file.text("general.architecture") == "llama") {}

  ModelTensors read() {
    for (const auto& [name, t] : files_->file.tensors()) {
      // RoPE's table in old files, and what read_gguf_config has taken.
      if (parts_of(name).stem == "attn_rot_embd" || name == kRopeDivisors) continue;
      ModelTensor tensor{name,  weight_type(t.type->id), t.type->name, t.shape, t.data, t.bytes,
                         t.file};
      if (parts_of(name).stem == "attn_qkv")
        take_apart(tensor);
      else
        add(translated(name, architecture_), std::move(tensor));
    }
    return ModelTensors(files_->file.source(), std::move(tensors_), files_);
  }

 private:
  size_t rows_of(const char* part) const {
    const int heads = part[0] == 'q' ? config_.query_heads : config_.kv_heads;
    return static_cast<size_t>(heads) * static_cast<size_t>(config_.head_dim);
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
    const size_t bytes = whole.bytes / rows;  // of a row: whole blocks
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
                            files_->file.source(), in_file));
  }

  /// Row 2 i + b of a head becomes row b D / 2 + i: RoPE of these files turns neighbours.
  void put_in_order(ModelTensor& tensor, size_t rows) {
    if (tensor.shape.front() != rows) return;  // refused with both shapes where it is asked for
    const auto dim = static_cast<size_t>(config_.head_dim);
    const size_t bytes = tensor.bytes / rows;
    auto copy = std::make_unique<std::byte[]>(tensor.bytes);
    for (size_t head = 0; head < rows; head += dim) {
      for (size_t i = 0; i < dim; ++i) {
        const size_t from = head + 2 * (i % (dim / 2)) + i / (dim / 2);
        std::memcpy(copy.get() + (head + i) * bytes, tensor.data + from * bytes, bytes);
      }
    }
    release_pages(tensor.data, tensor.bytes);
    tensor.data = copy.get();
    files_->copies.push_back(std::move(copy));
  }

  std::shared_ptr<Files> files_;
  const Architecture& architecture_;
  const ModelConfig& config_;
  bool permuted_;
  ModelTensors::Map tensors_;
};

}  // namespace

ModelTensors read_gguf_tensors(Gguf file, const ConfigFile& config) {
  return Reader(std::move(file), config).read();
}

}  // namespace pith
