#include "model/loaders/weights.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/dtype.h"
#include "core/finite.h"
#include "model/loaders/weights_digest.h"
#include "model/test_files.h"
#include "pith/error.h"

namespace pith {
namespace {

using nlohmann::json;
using testing_files::expect_error;
using testing_files::TemporaryFolder;
using testing_files::write_file;

/// A model small enough to write anew for every case, as a list of tensors to tamper with.
class WeightsTest : public testing::Test {
 protected:
  struct Entry {
    std::vector<size_t> shape;
    std::vector<float> numbers;
  };

  WeightsTest() {
    config_ = json::parse(R"({
      "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "intermediate_size": 48,
      "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 10,
      "max_position_embeddings": 64, "tie_word_embeddings": false})");
    add("model.embed_tokens.weight", {10, 32});
    add("model.norm.weight", {32});
    add("lm_head.weight", {10, 32});
    const std::string layer = "model.layers.0.";
    add(layer + "input_layernorm.weight", {32});
    add(layer + "post_attention_layernorm.weight", {32});
    add(layer + "self_attn.q_proj.weight", {32, 32});
    add(layer + "self_attn.k_proj.weight", {16, 32});
    add(layer + "self_attn.v_proj.weight", {16, 32});
    add(layer + "self_attn.o_proj.weight", {32, 32});
    add(layer + "mlp.gate_proj.weight", {48, 32});
    add(layer + "mlp.up_proj.weight", {48, 32});
    add(layer + "mlp.down_proj.weight", {32, 48});
  }
  void add(const std::string& name, const std::vector<size_t>& shape) {
    size_t count = 1;
    for (size_t n : shape) count *= n;
    entries_[name] = {shape, std::vector<float>(count, 0.5f)};
  }
  std::shared_ptr<const Model> load(bool check = true, const Progress& progress = {}) {
    write_file(folder_.path() / "config.json", config_.dump());
    std::vector<TensorBytes> tensors;
    for (const auto& [name, e] : entries_) {
      tensors.push_back({{name, TensorType::kF32, e.shape}, e.numbers.data()});
    }
    write_safetensors(folder_.path() / "model.safetensors", tensors);
    return Model::load(folder_.path(), check, progress);
  }
  void refused(ErrorCode code, const std::vector<std::string>& words) {
    expect_error(code, words, [&] { load(); });
  }

  TemporaryFolder folder_;
  json config_;
  std::map<std::string, Entry> entries_;
};

TEST_F(WeightsTest, AWholeModelLoads) {
  const auto model = load();
  EXPECT_EQ(model->config().layers, 1);
  size_t bytes = 0;
  for (const auto& [name, e] : entries_) bytes += e.numbers.size() * 4;
  EXPECT_EQ(model->weight_bytes(), bytes);
  EXPECT_NE(model->weights().head.data, model->weights().embedding.data);
}

TEST_F(WeightsTest, ATokenizerIsMissedWhereTextIsAskedForAndAPointerToOneIsNone) {
  const auto says = [&](const char* words) {
    const auto model = load();
    expect_error(ErrorCode::kNotFound, {folder_.path().string(), words, "token ids work"},
                 [&] { model->tokenizer(); });
  };
  says("neither tokenizer.json nor tokenizer.model");
  write_file(folder_.path() / "vocab.json", "{}");
  says("vocab.json and no tokenizer.json");
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    write_file(folder_.path() / name, "version https://git-lfs.github.com/spec/v1\n");
    refused(ErrorCode::kCorrupt, {name, "'git lfs pull'"});
  }
}

TEST_F(WeightsTest, TiedEmbeddingsByFlagOrByAbsence) {
  const auto tied = [&] {
    const auto model = load();
    EXPECT_EQ(model->config().tied_embeddings,
              model->weights().head.data == model->weights().embedding.data);
    return model->config().tied_embeddings;
  };
  EXPECT_FALSE(tied());
  config_["tie_word_embeddings"] = true;
  EXPECT_TRUE(tied());  // the second matrix is not used
  const auto head = entries_.extract("lm_head.weight");
  EXPECT_TRUE(tied());
  config_.erase("tie_word_embeddings");
  EXPECT_TRUE(tied());  // the weights decide
  config_["tie_word_embeddings"] = false;
  refused(ErrorCode::kNotFound, {"'lm_head.weight'"});
}

TEST_F(WeightsTest, EveryMissingTensorIsNamed) {
  const auto whole = entries_;
  for (const auto& [name, e] : whole) {
    entries_ = whole;
    entries_.erase(name);
    refused(ErrorCode::kNotFound, {"'" + name + "'", "model.safetensors"});
  }
}

TEST_F(WeightsTest, EveryWrongShapeIsNamedWithWhatWasExpected) {
  const auto whole = entries_;
  for (const auto& [name, e] : whole) {
    entries_ = whole;
    std::vector<size_t> shape = e.shape;
    shape[0] += 1;
    add(name, shape);
    Tensor text;
    text.shape = e.shape;
    refused(ErrorCode::kCorrupt, {"'" + name + "'", "by config.json it is " + text.shape_text()});
  }
  entries_ = whole;
  add("model.norm.weight", {32, 1});
  refused(ErrorCode::kCorrupt, {"[32, 1]", "[32]"});
}

TEST_F(WeightsTest, TensorsWithoutAPlaceAreRefusedButKnownTablesAreNot) {
  add("model.layers.0.self_attn.rotary_emb.inv_freq", {8});
  EXPECT_NO_THROW(load());
  add("model.layers.0.self_attn.q_proj.bias", {32});
  refused(ErrorCode::kUnsupported, {"q_proj.bias", "[32]"});
}

TEST_F(WeightsTest, NanAndInfinityAreFoundWhereverTheyAre) {
  const auto whole = entries_;
  for (const auto& [name, e] : whole) {
    for (float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      entries_ = whole;
      entries_[name].numbers.back() = bad;
      refused(ErrorCode::kNonFinite, {"'" + name + "'"});
      EXPECT_NO_THROW(load(/*check=*/false));
    }
  }
}

TEST_F(WeightsTest, ProgressRisesToTheTotalAndCanStop) {
  size_t last = 0, total = 0;
  load(true, [&](size_t done, size_t of) {
    EXPECT_GE(done, last);
    last = done;
    total = of;
    return true;
  });
  EXPECT_EQ(last, total);
  EXPECT_GT(total, 0u);
  expect_error(ErrorCode::kIo, {"stopped"},
               [&] { load(true, [](size_t, size_t) { return false; }); });
}

TEST_F(WeightsTest, WeightsOfOtherTypesAreRefused) {
  load();
  std::vector<TensorBytes> tensors;
  for (const auto& [name, e] : entries_) {
    const bool odd = name == "lm_head.weight";
    tensors.push_back(
        {{name, odd ? TensorType::kI32 : TensorType::kF32, e.shape}, e.numbers.data()});
  }
  write_safetensors(folder_.path() / "model.safetensors", tensors);
  expect_error(ErrorCode::kUnsupported, {"'lm_head.weight'", "I32", "BF16"},
               [&] { Model::load(folder_.path()); });
}

TEST_F(WeightsTest, EveryTruncationOfTheWeightsIsRefused) {
  load();
  const auto path = folder_.path() / "model.safetensors";
  const std::string whole = testing_files::read_file(path);
  for (size_t size = 0; size < whole.size(); size += 1 + whole.size() / 100) {
    write_file(path, whole.substr(0, size));
    expect_error(ErrorCode::kCorrupt, {"model.safetensors"}, [&] { Model::load(folder_.path()); });
  }
}

TEST(NonFinite, AgreesWithTheDefinitionOnEvery16BitPattern) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    ASSERT_EQ(has_non_finite(&h, DType::kF16, 1), !std::isfinite(f16_to_f32(h))) << bits;
    ASSERT_EQ(has_non_finite(&h, DType::kBF16, 1), !std::isfinite(bf16_to_f32(h))) << bits;
    const float x = bf16_to_f32(h);
    ASSERT_EQ(has_non_finite(&x, DType::kF32, 1), !std::isfinite(x)) << bits;
  }
  std::vector<float> many(1000, 3e38f);
  EXPECT_FALSE(has_non_finite(many.data(), DType::kF32, many.size()));
  many[500] = NAN;
  EXPECT_TRUE(has_non_finite(many.data(), DType::kF32, many.size()));
  EXPECT_FALSE(has_non_finite(many.data(), DType::kF32, 500));
}

/// Tensors of a map whose bytes are the test's.
ModelTensors tensors_over(const std::map<std::string, std::vector<std::byte>>& bytes) {
  ModelTensors::Map map;
  for (const auto& [name, x] : bytes)
    map[name] = {name, WeightType::kF16, "F16", {x.size() / 2}, x.data(), x.size(), "a file"};
  return {"a file", std::move(map), nullptr};
}

TEST(ModelDigest, SeesEveryTensorInAllThatItCovers) {
  constexpr size_t kWhole = kDigestBlock * kDigestBlocks;
  std::map<std::string, std::vector<std::byte>> bytes = {
      {"a", std::vector<std::byte>(2)},
      {"b", std::vector<std::byte>(kWhole)},
      {"c", std::vector<std::byte>(kWhole + 2)},
      {"d", std::vector<std::byte>(5 * kWhole + 4098)}};
  const Digest base = digest_of_tensors(tensors_over(bytes));
  EXPECT_EQ(digest_of_tensors(tensors_over(bytes)), base);
  for (auto& [name, x] : bytes) {
    size_t seen = 0, tried = 0;
    for (size_t at = 0; at<x.size(); at += x.size()> 100 ? 509 : 1) {
      x[at] ^= std::byte{1};
      seen += digest_of_tensors(tensors_over(bytes)) != base;
      ++tried;
      x[at] ^= std::byte{1};
    }
    for (const size_t at : {size_t{0}, x.size() - 1}) {
      x[at] ^= std::byte{1};
      EXPECT_NE(digest_of_tensors(tensors_over(bytes)), base) << name << " " << at;
      x[at] ^= std::byte{1};
    }
    if (name == "d") {
      EXPECT_NEAR(static_cast<double>(seen) / static_cast<double>(tried), 0.2, 0.02);
    } else {
      EXPECT_EQ(seen, tried) << name;  // "c" is covered twice in a place
    }
    // As training does, all numbers move a little.
    auto& y = x;
    const auto old = y;
    for (size_t at = 0; at < y.size(); at += 2) y[at] ^= std::byte{1};
    EXPECT_NE(digest_of_tensors(tensors_over(bytes)), base) << name;
    y = old;
  }
  auto renamed = bytes;
  renamed["e"] = renamed["a"], renamed.erase("a");
  EXPECT_NE(digest_of_tensors(tensors_over(renamed)), base);
}

TEST_F(WeightsTest, AModelsDigestFollowsEachTensorAndTheConfig) {
  const auto digest = [&] { return digest_of_model(load()->weights()); };
  const Digest base = digest();
  EXPECT_EQ(digest(), base);
  for (auto& [name, entry] : entries_) {
    const auto old = entry.numbers;
    entry.numbers.back() += 0.5f;
    EXPECT_NE(digest(), base) << name;
    entry.numbers = old;
  }
  const json config = config_;
  const std::vector<std::pair<std::string, json>> changes = {
      {"rope_theta", 20000.0}, {"rms_norm_eps", 1e-3}, {"num_attention_heads", 2}};
  for (const auto& [key, value] : changes) {
    config_[key] = value;
    EXPECT_EQ(digest() == base, key == "num_attention_heads") << key;
    config_ = config;
  }
}

}  // namespace
}  // namespace pith
