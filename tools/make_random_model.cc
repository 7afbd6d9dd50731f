// Writes a model of a given shape with random weights: for measurements at real sizes without real
// weights. Shapes of Llama 3.2 1B and Llama 3.1 8B are known by name; every field can be changed.
// Weights are uniform with variance 1 / inputs (norms are 1), a pure function of seed, tensor and
// index. With --weights it is a GGUF file of random blocks of that variance, without a tokenizer.
// Cost: about 1.5 ns a dense weight plus the disk.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/output_file.h"
#include "core/philox.h"
#include "core/safetensors.h"
#include "core/thread_pool.h"
#include "core/weight_type.h"
#include "kernels/block_products.h"
#include "pith/error.h"
#include "tools/quantize/gguf_writer.h"

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

std::vector<pith::GgufTensorSpec> gguf_tensors_of(const Shape& s, pith::WeightType type) {
  std::vector<pith::GgufTensorSpec> specs;
  const auto matrix = [&](const std::string& name, size_t out, size_t in) {
    specs.push_back({name + ".weight", static_cast<uint32_t>(type), {out, in}});
  };
  const auto norm = [&](const std::string& name) {
    specs.push_back({name + ".weight", static_cast<uint32_t>(pith::WeightType::kF32), {s.hidden}});
  };
  const size_t queries = s.heads * s.head_dim, keys = s.kv_heads * s.head_dim;
  matrix("token_embd", s.vocab, s.hidden);
  for (size_t l = 0; l < s.layers; ++l) {
    const std::string layer = fmt::format("blk.{}.", l);
    norm(layer + "attn_norm");
    matrix(layer + "attn_q", queries, s.hidden);
    matrix(layer + "attn_k", keys, s.hidden);
    matrix(layer + "attn_v", keys, s.hidden);
    matrix(layer + "attn_output", s.hidden, queries);
    norm(layer + "ffn_norm");
    matrix(layer + "ffn_gate", s.intermediate, s.hidden);
    matrix(layer + "ffn_up", s.intermediate, s.hidden);
    matrix(layer + "ffn_down", s.hidden, s.intermediate);
  }
  norm("output_norm");
  if (!s.tied) matrix("output", s.vocab, s.hidden);
  return specs;
}

pith::GgufKeys gguf_keys_of(const Shape& s) {
  const auto u32 = [](size_t x) { return static_cast<uint32_t>(x); };
  pith::GgufKeys keys;
  keys.text("general.architecture", "llama");
  keys.u32("general.quantization_version", 2);
  keys.u32("llama.block_count", u32(s.layers));
  keys.u32("llama.embedding_length", u32(s.hidden));
  keys.u32("llama.feed_forward_length", u32(s.intermediate));
  keys.u32("llama.attention.head_count", u32(s.heads));
  keys.u32("llama.attention.head_count_kv", u32(s.kv_heads));
  keys.u32("llama.attention.key_length", u32(s.head_dim));
  keys.u32("llama.context_length", u32(s.context));
  keys.f32("llama.rope.freq_base", static_cast<float>(s.rope_theta));
  keys.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  return keys;
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

/// The same of blocks: random codes, and f16 scales and minima of +-scale.
void fill_blocks(std::byte* out, pith::WeightType type, uint32_t number, size_t first, size_t count,
                 float scale, uint64_t seed) {
  const pith::Philox random(seed, number, 1);
  const size_t bytes = pith::block_bytes(type), draws = (bytes + 15) / 16;
  for (size_t b = first; b < first + count; ++b, out += bytes) {
    for (size_t d = 0; d < draws; ++d) {
      const auto words = random.words(b * (draws + 1) + d);
      std::memcpy(out + 16 * d, words.word, std::min<size_t>(16, bytes - 16 * d));
    }
    uint32_t signs = random.words(b * (draws + 1) + draws)[0];
    for (const uint8_t offset : pith::scale_offsets(type)) {
      const uint16_t half = pith::f32_to_f16((signs & 1) == 0 ? scale : -scale);
      signs >>= 1;
      std::memcpy(out + offset, &half, 2);
    }
  }
}

/// The scale of random blocks whose numbers' mean square is `square`.
float scale_for(pith::WeightType type, double square) {
  constexpr size_t kBlocks = 512;
  std::vector<std::byte> blocks(kBlocks * pith::block_bytes(type));
  std::vector<float> numbers(kBlocks * pith::block_elements(type));
  fill_blocks(blocks.data(), type, 0, 0, kBlocks, 1, 0);
  pith::block_kernels(pith::kernels_for())
      .decode(numbers.data(), blocks.data(), type, numbers.size());
  double sum = 0;
  for (const float x : numbers) sum += double{x} * x;
  return static_cast<float>(std::sqrt(square * static_cast<double>(numbers.size()) / sum));
}

void write_gguf(const std::filesystem::path& path, const Shape& shape, pith::WeightType type,
                uint64_t seed) {
  const auto specs = gguf_tensors_of(shape, type);
  const std::string head = pith::gguf_head(gguf_keys_of(shape), specs);
  pith::OutputFile file(path);
  file.write(head.data(), head.size());
  pith::ThreadPool pool;
  constexpr size_t kPiece = size_t{1} << 12, kPieces = 64;  // blocks, as numbers in write_model
  std::vector<std::byte> buffer(kPiece * kPieces * pith::block_bytes(type));
  for (uint32_t number = 0; number < specs.size(); ++number) {
    const pith::GgufTensorSpec& spec = specs[number];
    if (spec.shape.size() == 1) {
      const std::vector<float> ones(spec.shape[0], 1.0f);
      file.write(ones.data(), ones.size() * sizeof(float));
    } else {
      const float scale = scale_for(type, 1.0 / static_cast<double>(spec.shape[1]));
      const size_t count = spec.shape[0] * spec.shape[1] / pith::block_elements(type);
      for (size_t done = 0; done < count; done += kPiece * kPieces) {
        const size_t batch = std::min(kPiece * kPieces, count - done);
        pool.parallel_for((batch + kPiece - 1) / kPiece, [&](size_t p, int) {
          const size_t first = p * kPiece;
          fill_blocks(buffer.data() + first * pith::block_bytes(type), type, number, done + first,
                      std::min(kPiece, batch - first), scale, seed);
        });
        file.write(buffer.data(), batch * pith::block_bytes(type));
      }
    }
    const size_t over = pith::gguf_tensor_bytes(spec) % pith::kGgufAlignment;
    const std::string padding(over == 0 ? 0 : pith::kGgufAlignment - over, '\0');
    file.write(padding.data(), padding.size());
  }
  file.commit();
}

/// By GGUF's name in any case. Throws kInvalidArgument for dense types, which have --dtype.
pith::WeightType block_type(std::string name) {
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  std::string known;
  for (const pith::WeightType type : pith::weight_types()) {
    if (pith::dense_type(type)) continue;
    if (name == pith::to_string(type)) return type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", pith::to_string(type));
  }
  throw pith::Error(pith::ErrorCode::kInvalidArgument,
                    fmt::format("unknown type of blocks '{}'; known: {}", name, known));
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
  std::string name = "tiny", dtype = "bf16", weights, out, tokenizer;
  uint64_t seed = 0;
  Shape changes;
  CLI::App app("Writes a model of a given shape with random weights");
  app.add_option("--shape", name, "llama-3.2-1b, llama-3.1-8b or tiny")->capture_default_str();
  app.add_option("--dtype", dtype, "f32, f16 or bf16")->capture_default_str();
  app.add_option("--weights", weights,
                 "a type of blocks, such as q4_k: --out is a GGUF file with matrices of it")
      ->excludes("--dtype");
  app.add_option("--out", out, "folder to write")->required();
  app.add_option("--tokenizer", tokenizer, "a tokenizer.json to copy into the folder")
      ->excludes("--weights");
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
    if (!weights.empty()) {
      write_gguf(out, shape, block_type(weights), seed);
      return 0;
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
