// Models written as GGUF files: what is written dense computes what the source does, and blocks
// come as near to it as their bits allow.

#include "tools/quantize/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "gguf_test_model.h"
#include "model/loaders/weights.h"
#include "model/tokenizers/tokenizer_kinds.h"
#include "paths.h"
#include "pith/session.h"
#include "tools/quantize/gguf_draft.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using testing_files::expect_error;
using testing_files::TemporaryFolder;
using testing_gguf::TwoForms;

fs::path golden(const char* name) { return repo_dir() / "tests" / "data" / "models" / name; }

QuantizeReport write(const fs::path& model, const fs::path& out, WeightType type) {
  return quantize({.model = model, .output = out, .type = type, .chat_template = {}, .threads = 2},
                  {});
}

std::vector<float> logits_of(const fs::path& path) {
  StandaloneOptions options;
  options.policy = Policy::parse("exact,dtype=f32");
  options.context = 64;
  options.f32_arithmetic = true;
  options.threads = 1;
  const auto model = Model::load(path);
  Session session(model, options);
  std::vector<int32_t> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(i * 37 % model->config().vocab);
  std::vector<float> all;
  session.prefill_logits(ids, [&](size_t, size_t count, const float* logits) {
    all.insert(all.end(), logits, logits + count * static_cast<size_t>(model->config().vocab));
  });
  return all;
}

double nmse(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double off = 0, square = 0;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    off += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    square += double{b[i]} * b[i];
  }
  return off / square;
}

class FolderTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Quantize, FolderTest,
                         testing::Values("llama2", "llama31", "llama_bias", "qwen3",
                                         "deepseek_r1_distill", "phi3", "phi4_mini", "olmo2",
                                         "granite"),
                         [](const auto& one) { return std::string(one.param); });

// Names, keys, orders of rows, scalings of RoPE and multipliers: nothing is lost on the way.
TEST_P(FolderTest, WrittenDenseComputesTheSame) {
  const TemporaryFolder folder;
  const auto out = folder.path() / "x.gguf";
  write(golden(GetParam()), out, WeightType::kF32);
  EXPECT_LE(nmse(logits_of(out), logits_of(golden(GetParam()))), 1e-10);
  // And of the file itself, as a source.
  const auto again = folder.path() / "y.gguf";
  write(out, again, WeightType::kF32);
  EXPECT_EQ(logits_of(again), logits_of(out));
  EXPECT_EQ(testing_files::read_file(again).size(), testing_files::read_file(out).size());
}

TEST(Quantize, WhatAFileCannotSayIsRefused) {
  const TemporaryFolder folder;
  const auto out = folder.path() / "x.gguf";
  for (const char* name : {"mistral", "qwen2"}) {
    expect_error(ErrorCode::kUnsupported, {"sliding window of layer", "read as 0"},
                 [&] { write(golden(name), out, WeightType::kQ8Zero); });
  }
  // Scores are scaled by another width than the heads': files of gemma3 have no word for it.
  expect_error(ErrorCode::kUnsupported, {"the factor of scores", "gemma3"},
               [&] { write(golden("gemma3"), out, WeightType::kQ8Zero); });
  expect_error(ErrorCode::kUnsupported, {"Q6_K", "supported: F32"},
               [&] { write(golden("qwen3"), out, WeightType::kQ6K); });
  EXPECT_FALSE(fs::exists(out));
}

// Norms are stored without the 1 that folders leave out, windows and their RoPE by layer, soft
// caps.
class GemmaTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Quantize, GemmaTest, testing::Values("gemma2", "gemma3"),
                         [](const auto& one) { return std::string(one.param); });
TEST_P(GemmaTest, WrittenDenseComputesTheSame) {
  const TemporaryFolder folder;
  fs::copy(golden(GetParam()), folder.path() / "m");
  const auto config = folder.path() / "m" / "config.json";
  auto json = nlohmann::json::parse(testing_files::read_file(config));
  json["query_pre_attn_scalar"] = json["head_dim"];
  testing_files::write_file(config, json.dump());
  write(folder.path() / "m", folder.path() / "x.gguf", WeightType::kF32);
  EXPECT_LE(nmse(logits_of(folder.path() / "x.gguf"), logits_of(folder.path() / "m")), 1e-10);
}

TEST(Quantize, BlocksAreNearTheirSource) {
  TwoForms model("llama", WeightType::kF32);
  const auto folder = model.write_folder();
  const std::vector<float> wanted = logits_of(folder);
  const TemporaryFolder outputs;
  const struct {
    WeightType type;
    double most, error;
  } cases[] = {{WeightType::kF16, 1e-6, 3e-4},
               {WeightType::kQ8Zero, 1e-3, 0.006},
               {WeightType::kQ4K, 0.1, 0.075},
               {WeightType::kQ4Zero, 0.14, 0.085}};
  for (const auto& c : cases) {
    const auto out = outputs.path() / "x.gguf";
    const QuantizeReport report = write(folder, out, c.type);
    EXPECT_EQ(report.bytes, fs::file_size(out)) << to_string(c.type);
    EXPECT_LE(nmse(logits_of(out), wanted), c.most) << to_string(c.type);
    for (const QuantizedTensor& t : report.tensors) {
      EXPECT_FALSE(t.fell_back);
      const bool vector = t.shape.size() == 1;
      const bool table = t.name == "token_embd.weight" && !dense_type(c.type);
      EXPECT_EQ(t.to, vector ? WeightType::kF32 : table ? WeightType::kQ8Zero : c.type) << t.name;
      EXPECT_LE(t.error, vector ? 0 : c.error) << t.name << to_string(c.type);
    }
    const Gguf file = Gguf::open(out);
    EXPECT_EQ(file.integer("general.quantization_version", 0, 9), 2);
  }
}

TEST(Quantize, RowsThatAreNoWholeBlocksFallBackAndSayIt) {
  const TemporaryFolder folder;
  const auto out = folder.path() / "x.gguf";
  // Rows of 64, and of Phi 4's 96.
  const QuantizeReport report = write(golden("phi4_mini"), out, WeightType::kQ4K);
  size_t fallen = 0;
  for (const QuantizedTensor& t : report.tensors) {
    if (t.shape.size() == 1) continue;
    const bool table = t.name == "token_embd.weight";
    EXPECT_EQ(t.to, table ? WeightType::kQ8Zero : WeightType::kQ5Zero) << t.name;
    EXPECT_EQ(t.fell_back, !table) << t.name;
    fallen += t.fell_back;
  }
  EXPECT_GT(fallen, 4u);
  EXPECT_LT(nmse(logits_of(out), logits_of(golden("phi4_mini"))), 0.1);
  // Rows of 48 in a small MLP.
  for (const QuantizedTensor& t : write(golden("llama_bias"), out, WeightType::kQ4Zero).tensors)
    if (t.name == "blk.0.ffn_down.weight") {
      EXPECT_EQ(t.to, WeightType::kF16);
      EXPECT_TRUE(t.fell_back);
    }
}

TEST(Quantize, AFileAppearsWholeOrNotAtAll) {
  const TemporaryFolder folder;
  const auto out = folder.path() / "x.gguf";
  testing_files::write_file(out, "before");
  const QuantizeRequest request{.model = golden("qwen3"),
                                .output = out,
                                .type = WeightType::kQ8Zero,
                                .chat_template = {},
                                .threads = 1};
  expect_error(ErrorCode::kIo, {"stopped"},
               [&] { quantize(request, [](size_t, size_t) { return false; }); });
  EXPECT_EQ(testing_files::read_file(out), "before");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()), 1);
  quantize(request, {});
  const auto same = request.output;
  expect_error(ErrorCode::kInvalidArgument, {"is read"},
               [&] { write(same, out, WeightType::kQ4Zero); });
  expect_error(ErrorCode::kIo, {"no/such"},
               [&] { write(golden("qwen3"), folder.path() / "no/such/x.gguf", WeightType::kF32); });
}

TEST(Quantize, NumbersBeyondAScaleAreNamed) {
  TwoForms model("llama", WeightType::kF32);
  for (auto& s : model.stored)
    if (s.gguf == "blk.1.ffn_up.weight") s.numbers[7] = 1e9f;
  const auto folder = model.write_folder();
  const TemporaryFolder out;
  expect_error(ErrorCode::kInvalidArgument, {"blk.1.ffn_up.weight", "65504"},
               [&] { write(folder, out.path() / "x.gguf", WeightType::kQ8Zero); });
  EXPECT_TRUE(fs::is_empty(out.path()));
}

/// Tokenizers of tests/data as keys of a file, and read from there.
TEST(Quantize, TokenizersGiveTheSameIds) {
  std::ifstream stream(repo_dir() / "tests/data/tokenizers/strings.json");
  const auto strings = nlohmann::json::parse(stream).at("text");
  for (const char* name : {"gpt2", "qwen2", "llama3", "llama2_json", "llama2"}) {
    const auto folder = repo_dir() / "tests/data/tokenizers" / name;
    const auto own = load_tokenizer(folder);
    GgufKeys keys;
    add_tokenizer_keys(folder, own->vocab_size() + 3, keys);
    const std::string head = gguf_head(keys, {});
    const auto read = load_gguf_tokenizer(Gguf::parse(std::as_bytes(std::span(head)), "x.gguf"));
    EXPECT_EQ(read->vocab_size(), own->vocab_size() + 3) << "rows of padding";
    if (own->bos() >= 0) {
      EXPECT_EQ(read->bos(), own->bos());
    }
    EXPECT_EQ(read->add_bos(), own->add_bos());
    for (const auto& string : strings) {
      const auto text = string.get<std::string>();
      EXPECT_EQ(read->encode(text), own->encode(text)) << name << ": " << text;
    }
    for (int32_t id = 0; id < own->vocab_size(); ++id)
      ASSERT_EQ(read->is_special(id), own->is_special(id)) << name << id;
    expect_error(ErrorCode::kUnsupported, {"rows"},
                 [&] { add_tokenizer_keys(folder, own->vocab_size() - 1, keys); });
  }
  for (const auto& [name, why] :
       {std::pair("unigram", "no BPE"), std::pair("llama2_new", "legacy = false")}) {
    const auto folder = repo_dir() / "tests/data/tokenizers" / name;
    GgufKeys keys;
    expect_error(ErrorCode::kUnsupported, {name, why},
                 [&] { add_tokenizer_keys(folder, 2000, keys); });
  }
}

}  // namespace
}  // namespace pith
