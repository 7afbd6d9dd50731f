// Files of weights and what lies beside them: safetensors, GGUF, config.json, dictionaries.

#include <array>
#include <nlohmann/json.hpp>

#include "core/gguf.h"
#include "core/safetensors.h"
#include "fuzz/fuzz.h"
#include "methods/codecs/csr/dictionary.h"
#include "model/loaders/config.h"
#include "model/loaders/gguf_model.h"
#include "model/test_files.h"
#include "model/tokenizers/tokenizer_kinds.h"
#include "paths.h"
#include "pith/session.h"
#include "tools/quantize/quantize.h"

namespace pith::fuzz {
namespace {

using testing_files::raw_safetensors;

std::vector<std::string> safetensors_seeds() {
  return {raw_safetensors(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                          R"("b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]},)"
                          R"("__metadata__":{"format":"pt"}})",
                          std::string(32, 'x')),
          raw_safetensors(R"({"e":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)"
                          R"("s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})",
                          std::string(8, 'x'))};
}

bool read_safetensors(std::string_view input) {
  return harmless([&] {
    const SafeTensors all = SafeTensors::open(file("a.safetensors", input));
    for (const auto& [name, tensor] : all.tensors()) {
      touch({tensor.data, tensor.bytes});
      need(!tensor.shape_text().empty() && tensor.count() * size_of(tensor.type) == tensor.bytes,
           "a tensor's numbers are its bytes");
    }
  });
}

std::vector<std::string> gguf_seeds() { return {tiny_gguf()}; }

bool read_gguf(std::string_view input) {
  return harmless([&] {
    const Gguf all = Gguf::parse(std::as_bytes(std::span(input)), "fuzz");
    size_t length = 0;
    for (const auto& [name, value] : all.keys()) length += all.describe(name).size();
    for (const auto& [name, tensor] : all.tensors()) {
      touch({tensor.data, tensor.bytes});
      length += tensor.shape_text().size();
    }
    need(length < input.size() * 64 + 4096, "texts about a file are no larger than the file");
    harmless([&] { (void)read_gguf_config(all); });
    harmless([&] {
      const auto tokenizer = load_gguf_tokenizer(all);
      const auto ids = tokenizer->encode("Größe 12 <s>\n x</s>");
      need(tokenizer->decode(ids).size() < size_t{1} << 24, "a short text stays short");
    });
  });
}

/// Some tokens through whatever has become a model.
void use_model(const std::filesystem::path& path) {
  const auto model = Model::load(path);
  StandaloneOptions options;
  options.threads = 1;
  options.context = 16;
  options.policy = Policy::parse("exact+int4,window=2");
  Session session(model, options);
  const std::array<int32_t, 3> ids = {1, 0, 2};
  for (const float x : session.prefill(ids)) need(x - x == 0, "logits are finite");
  (void)session.decode(1);
}

bool load_gguf(std::string_view input) {
  const auto path = file("model.gguf", input);
  return harmless([&] { use_model(path); }) && harmless([&] {
           const auto out = folder() / "quantized.gguf";
           std::filesystem::remove(out);
           quantize({path, out, WeightType::kQ8Zero, "", 1}, {});
           use_model(out);
         });
}

std::vector<std::string> config_seeds() {
  std::vector<std::string> seeds;
  for (const char* name :
       {"deepseek_r1_distill", "gemma3", "granite", "llama31", "phi4_mini", "qwen3"})
    seeds.push_back(read_all(repo_dir() / "tests/data/models" / name / "config.json"));
  return seeds;
}

bool read_configs(std::string_view input) {
  const auto path = file("config/config.json", input).parent_path();
  return harmless([&] {
    const ConfigFile config = read_config(path);
    need(config.model.layers > 0 && config.model.head_dim > 0 && config.model.kv_heads > 0 &&
             config.model.vocab > 0 && config.model.context > 0,
         "a config that is taken has sizes");
    need(config.model.query_heads % config.model.kv_heads == 0, "heads are shared evenly");
    harmless([&] { (void)estimate_ledger(config.model, StandaloneOptions{}, 100); });
  });
}

/// config.json, a NUL and model.safetensors.
std::vector<std::string> folder_seeds() {
  std::vector<std::string> seeds;
  for (const char* name : {"llama_bias", "deepseek_r1_distill"}) {
    const auto from = repo_dir() / "tests/data/models" / name;
    seeds.push_back(read_all(from / "config.json") + '\0' + read_all(from / "model.safetensors"));
  }
  return seeds;
}

bool load_folder(std::string_view input) {
  const size_t cut = std::min(input.find('\0'), input.size());
  file("model/config.json", input.substr(0, cut));
  const auto path = file("model/model.safetensors", input.substr(std::min(cut + 1, input.size())));
  return harmless([&] { use_model(path.parent_path()); });
}

std::vector<std::string> dictionary_seeds() {
  const auto path = folder() / "dictionary.safetensors";
  GroupAtoms atoms{{0, 1}, 1, 8, 16, std::vector<uint16_t>(8 * 16, 0x3400)};
  write_dictionary(path, {"fuzz", 7, 2, 1, 16}, {{atoms}, {atoms}}, {{"steps", "3"}});
  return {read_all(path)};
}

bool read_dictionary(std::string_view input) {
  return harmless([&] {
    const auto read = DictionaryFile::open(file("read_dictionary.safetensors", input));
    for (const Side side : {Side::kKeys, Side::kValues}) {
      (void)read.chunks(side);
      for (size_t l = 0; l < std::min<size_t>(read.model().layers, 100); ++l)
        (void)read.layer_bytes(side, l);
    }
    StandaloneOptions options;
    options.policy = Policy::parse(
        "exact+csr(s=2,online=0,dict=" + (folder() / "read_dictionary.safetensors").string() + ")");
    ModelConfig config;
    config.layers = 2, config.query_heads = config.kv_heads = 1, config.head_dim = 16;
    config.hidden = config.intermediate = 16, config.vocab = 8, config.context = 100;
    config.sliding_window = {0, 0}, config.fingerprint = 7;
    (void)estimate_ledger(config, options, 100);
  });
}

}  // namespace

std::span<const Target> file_targets() {
  static const Target all[] = {
      {"safetensors", safetensors_seeds, read_safetensors},
      {"gguf", gguf_seeds, read_gguf},
      {"gguf_model", gguf_seeds, load_gguf},
      {"config", config_seeds, read_configs},
      {"folder_model", folder_seeds, load_folder, 150},
      {"dictionary", dictionary_seeds, read_dictionary},
  };
  return all;
}

}  // namespace pith::fuzz
