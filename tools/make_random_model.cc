// Writes a model of a given shape with random weights: for measurements at real sizes without real
// weights. Shapes of Llama 3.2 1B and Llama 3.1 8B are known by name; every field can be changed.
// Weights are uniform with variance 1 / inputs (norms are 1), a pure function of seed, tensor and
// index. Cost: about 1.5 ns a weight plus the disk.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/philox.h"
#include "core/safetensors.h"
#include "core/thread_pool.h"
#include "pith/error.h"

namespace {

using nlohmann::ordered_json;

struct Shape {
  size_t layers = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  size_t context = 131072;
  double rope_theta = 500000;
  bool tied = false;
};

const std::map<std::string, Shape> kShapes = {
    {"llama-3.2-1b", {16, 2048, 8192, 32, 8, 64, 128256, 131072, 500000, true}},
    {"llama-3.1-8b", {32, 4096, 14336, 32, 8, 128, 128256, 131072, 500000, false}},
    {"tiny", {2, 64, 128, 4, 2, 16, 256, 4096, 10000, true}},
};

ordered_json config_of(const Shape& s, pith::DType dtype) {
  const char* name = dtype == pith::DType::kBF16  ? "bfloat16"
                     : dtype == pith::DType::kF16 ? "float16"
                                                  : "float32";
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", s.hidden},
          {"intermediate_size", s.intermediate},
          {"num_hidden_layers", s.layers},
          {"num_attention_heads", s.heads},
          {"num_key_value_heads", s.kv_heads},
          {"head_dim", s.head_dim},
          {"vocab_size", s.vocab},
          {"max_position_embeddings", s.context},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", s.rope_theta},
          {"tie_word_embeddings", s.tied},
          {"bos_token_id", 0},
          {"eos_token_id", 1},
          {"torch_dtype", name}};
}

std::vector<pith::TensorSpec> tensors_of(const Shape& s, pith::DType dtype) {
  const auto type = dtype == pith::DType::kBF16  ? pith::TensorType::kBF16
                    : dtype == pith::DType::kF16 ? pith::TensorType::kF16
                                                 : pith::TensorType::kF32;
  std::vector<pith::TensorSpec> specs;
  const auto add = [&](const std::string& name, std::vector<size_t> shape) {
    specs.push_back({name + ".weight", type, std::move(shape)});
  };
  add("model.embed_tokens", {s.vocab, s.hidden});
  for (size_t l = 0; l < s.layers; ++l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    add(layer + "input_layernorm", {s.hidden});
    add(layer + "self_attn.q_proj", {s.heads * s.head_dim, s.hidden});
    add(layer + "self_attn.k_proj", {s.kv_heads * s.head_dim, s.hidden});
    add(layer + "self_attn.v_proj", {s.kv_heads * s.head_dim, s.hidden});
    add(layer + "self_attn.o_proj", {s.hidden, s.heads * s.head_dim});
    add(layer + "post_attention_layernorm", {s.hidden});
    add(layer + "mlp.gate_proj", {s.intermediate, s.hidden});
    add(layer + "mlp.up_proj", {s.intermediate, s.hidden});
    add(layer + "mlp.down_proj", {s.hidden, s.intermediate});
  }
  add("model.norm", {s.hidden});
  if (!s.tied) add("lm_head", {s.vocab, s.hidden});
  return specs;
}

void store(std::byte* out, size_t index, float x, pith::TensorType type) {
  if (type == pith::TensorType::kF32) {
    reinterpret_cast<float*>(out)[index] = x;
  } else {
    reinterpret_cast<uint16_t*>(out)[index] =
        type == pith::TensorType::kF16 ? pith::f32_to_f16(x) : pith::f32_to_bf16(x);
  }
}

/// Numbers [first, first + count) of tensor `number`; first is a multiple of 8. A Philox block
/// makes eight: uniforms of 16 bits are random enough for bf16.
void fill(std::byte* out, const pith::TensorSpec& spec, uint32_t number, size_t first, size_t count,
          uint64_t seed) {
  const pith::Philox random(seed, number, 0);
  const bool norm = spec.shape.size() == 1;
  // Embeddings feed a norm, so their scale is free; 1 / inputs suits the matrices.
  const float reach = norm ? 0 : std::sqrt(3.0f / static_cast<float>(spec.shape[1]));
  for (size_t i = 0; i < count; i += 8) {
    const auto words = random.words((first + i) / 8);
    for (size_t j = 0; j < 8 && i + j < count; ++j) {
      const uint32_t half = (words[j / 2] >> (16 * (j % 2))) & 0xFFFFu;
      const float uniform = (static_cast<float>(half) + 0.5f) * 0x1p-15f - 1;  // (-1, 1)
      store(out, i + j, norm ? 1.0f : reach * uniform, spec.type);
    }
  }
}

void write_model(const std::filesystem::path& folder, const Shape& shape, pith::DType dtype,
                 uint64_t seed) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << config_of(shape, dtype).dump(1) << "\n";
  const auto specs = tensors_of(shape, dtype);
  pith::SafeTensorsWriter writer(folder / "model.safetensors", specs, {{"format", "pt"}});
  pith::ThreadPool pool;
  constexpr size_t kPiece = size_t{1} << 20,
                   kPieces = 16;  // numbers a task makes, and a write holds
  std::vector<std::byte> buffer(kPiece * kPieces * sizeof(float));
  for (uint32_t number = 0; number < specs.size(); ++number) {
    const pith::TensorSpec& spec = specs[number];
    const size_t size = size_of(spec.type);
    size_t count = 1;
    for (size_t n : spec.shape) count *= n;
    for (size_t done = 0; done < count; done += kPiece * kPieces) {
      const size_t batch = std::min(kPiece * kPieces, count - done);
      pool.parallel_for((batch + kPiece - 1) / kPiece, [&](size_t p, int) {
        const size_t first = p * kPiece;
        fill(buffer.data() + first * size, spec, number, done + first,
             std::min(kPiece, batch - first), seed);
      });
      writer.append(buffer.data(), batch * size);
    }
  }
  writer.finish();
}

}  // namespace

int main(int argc, char** argv) {
  std::string name = "tiny", dtype = "bf16", out, tokenizer;
  uint64_t seed = 0;
  Shape changes;
  CLI::App app("Writes a model of a given shape with random weights");
  app.add_option("--shape", name, "llama-3.2-1b, llama-3.1-8b or tiny")->capture_default_str();
  app.add_option("--dtype", dtype, "f32, f16 or bf16")->capture_default_str();
  app.add_option("--out", out, "folder to write")->required();
  app.add_option("--tokenizer", tokenizer, "a tokenizer.json to copy into the folder");
  app.add_option("--seed", seed)->capture_default_str();
  app.add_option("--layers", changes.layers, "changes the shape, like those below");
  app.add_option("--hidden", changes.hidden);
  app.add_option("--intermediate", changes.intermediate);
  app.add_option("--heads", changes.heads);
  app.add_option("--kv-heads", changes.kv_heads);
  app.add_option("--head-dim", changes.head_dim);
  app.add_option("--vocab", changes.vocab);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto found = kShapes.find(name);
    if (found == kShapes.end()) {
      throw pith::Error(
          pith::ErrorCode::kInvalidArgument,
          fmt::format("unknown shape '{}'; known: llama-3.2-1b, llama-3.1-8b, tiny", name));
    }
    Shape shape = found->second;
    for (size_t Shape::*field :
         {&Shape::layers, &Shape::hidden, &Shape::intermediate, &Shape::heads, &Shape::kv_heads,
          &Shape::head_dim, &Shape::vocab}) {
      if (changes.*field != 0) shape.*field = changes.*field;
    }
    write_model(out, shape, pith::parse_dtype(dtype), seed);
    if (!tokenizer.empty()) {
      std::filesystem::copy_file(tokenizer, std::filesystem::path(out) / "tokenizer.json",
                                 std::filesystem::copy_options::overwrite_existing);
    }
  } catch (const std::exception& e) {
    fmt::print(stderr, "make_random_model: {}\n", e.what());
    return 1;
  }
  return 0;
}
