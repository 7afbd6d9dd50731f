#include "model/loaders/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/test_files.h"
#include "pith/error.h"

namespace pith {
namespace {

using nlohmann::json;
using testing_files::expect_error;
using testing_files::TemporaryFolder;
using testing_files::write_file;

/// A folder with a config.json that loads, to be changed field by field.
class ConfigTest : public testing::Test {
 protected:
  ConfigFile read(const json& changes) {
    json config = base_;
    config.merge_patch(changes);  // null removes a field
    write_file(folder_.path() / "config.json", config.dump());
    return read_config(folder_.path());
  }
  void refused(ErrorCode code, const std::vector<std::string>& words, const json& changes) {
    SCOPED_TRACE(changes.dump());
    expect_error(code, words, [&] { read(changes); });
  }

  TemporaryFolder folder_;
  json base_ = json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048,
    "intermediate_size": 8192, "num_hidden_layers": 3, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008], "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "hidden_act": "silu"})");
};

TEST_F(ConfigTest, ReadsShapesAndConstants) {
  const ModelConfig c = read(json::object()).model;
  EXPECT_EQ(c.architecture, "LlamaForCausalLM");
  EXPECT_EQ(c.layers, 3);
  EXPECT_EQ(c.hidden, 2048);
  EXPECT_EQ(c.intermediate, 8192);
  EXPECT_EQ(c.query_heads, 32);
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.vocab, 128256);
  EXPECT_EQ(c.context, 131072);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.rope_theta, 500000);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.weights, DType::kBF16);
  EXPECT_EQ(c.bos, 128000);
  EXPECT_EQ(c.eos, (std::vector<int32_t>{128001, 128008}));
  EXPECT_EQ(c.sliding_window, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_EQ(c.bytes_per_token(DType::kF16), size_t{2} * 3 * 8 * 64 * 2);
}

TEST_F(ConfigTest, DefaultsAreThoseOfTransformers) {
  const ModelConfig c = read({{"num_key_value_heads", nullptr},
                              {"rope_theta", nullptr},
                              {"rms_norm_eps", nullptr},
                              {"tie_word_embeddings", nullptr},
                              {"eos_token_id", nullptr},
                              {"bos_token_id", nullptr},
                              {"hidden_act", nullptr},
                              {"architectures", nullptr}})
                            .model;
  EXPECT_EQ(c.architecture, "LlamaForCausalLM");  // from model_type
  EXPECT_EQ(c.kv_heads, 32);
  EXPECT_EQ(c.rope_theta, 10000);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-6f);
  EXPECT_FALSE(c.tied_embeddings);
  EXPECT_TRUE(c.eos.empty());
  EXPECT_EQ(c.bos, -1);
}

TEST_F(ConfigTest, RopeInBothSpellings) {
  const json llama3 = {{"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192},
                       {"rope_type", "llama3"}};
  json with_theta = llama3;
  with_theta["rope_theta"] = 250000.0;
  for (const json& changes : {json{{"rope_scaling", llama3}, {"rope_theta", 250000.0}},
                              json{{"rope_parameters", with_theta},
                                   {"rope_theta", nullptr},
                                   {"torch_dtype", nullptr},
                                   {"dtype", "bfloat16"}}}) {
    const ConfigFile c = read(changes);
    EXPECT_EQ(c.model.rope_theta, 250000);
    EXPECT_EQ(c.model.weights, DType::kBF16);
    EXPECT_EQ(c.rope.factor, 32);
    EXPECT_EQ(c.rope.low_freq_factor, 1);
    EXPECT_EQ(c.rope.high_freq_factor, 4);
    EXPECT_EQ(c.rope.original_context, 8192);
    EXPECT_FALSE(c.rope.linear);
  }
  const ConfigFile linear = read({{"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}});
  EXPECT_TRUE(linear.rope.linear);
  EXPECT_EQ(linear.rope.factor, 2.5f);
  EXPECT_EQ(
      read({{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 7.0}}}}).model.rope_theta,
      7);
  for (const char* type : {"yarn", "dynamic", "proportional"}) {
    refused(ErrorCode::kUnsupported, {type, "llama3"},
            {{"rope_scaling", {{"rope_type", type}, {"factor", 4.0}}}});
  }
  refused(ErrorCode::kCorrupt, {"rope_scaling", "factor"},
          {{"rope_scaling", {{"rope_type", "linear"}}}});
  refused(ErrorCode::kCorrupt, {"original_max_position_embeddings", "missing"},
          {{"rope_scaling", {{"rope_type", "longrope"}, {"factor", 4.0}}}});
  refused(ErrorCode::kCorrupt, {"rope_scaling"}, {{"rope_scaling", 3}});
  refused(ErrorCode::kUnsupported, {"partial_rotary_factor"}, {{"partial_rotary_factor", 0.5}});
  refused(ErrorCode::kUnsupported, {"full_attention"},
          {{"rope_parameters", {{"full_attention", {{"rope_theta", 1e6}}}}}});
}

TEST_F(ConfigTest, LongRopeHasADivisorAPair) {
  json scaling = {{"type", "longrope"},
                  {"long_factor", std::vector<double>(24, 2.0)},
                  {"short_factor", std::vector<double>(24, 1.0)}};
  json phi = {{"architectures", {"Phi3ForCausalLM"}},
              {"original_max_position_embeddings", 4096},
              {"partial_rotary_factor", 0.75},
              {"rope_scaling", scaling}};
  const ConfigFile c = read(phi);
  EXPECT_EQ(c.rope.rotated, 48u);
  EXPECT_EQ(c.rope.divisors, std::vector<double>(24, 2.0));
  EXPECT_EQ(c.short_rope.value().divisors, std::vector<double>(24, 1.0));
  EXPECT_EQ(c.short_rope->rotated, 48u);
  EXPECT_NEAR(c.rope_magnitude, std::sqrt(1 + std::log(32.0) / std::log(4096.0)), 1e-6);
  for (const json& bad : {json(std::vector<double>(23, 2.0)), json(3), json::array({1, "2"}),
                          json(std::vector<double>(24, 0.0))}) {
    phi["rope_scaling"]["long_factor"] = bad;
    refused(ErrorCode::kCorrupt, {"long_factor", "24 positive"}, phi);
  }
  phi["rope_scaling"] = scaling;
  phi["partial_rotary_factor"] = 0.703125;  // 45 channels
  refused(ErrorCode::kUnsupported, {"partial_rotary_factor", "45 of 64"}, phi);
}

TEST_F(ConfigTest, Gemma3HasTwoRopesAndAPattern) {
  json gemma = {{"architectures", {"Gemma3ForCausalLM"}},
                {"num_hidden_layers", 7},
                {"sliding_window", 512},
                {"hidden_act", nullptr},
                {"rope_theta", 1e6},
                {"query_pre_attn_scalar", 168}};
  const ConfigFile c = read(gemma);
  EXPECT_EQ(c.model.head_dim, 256);
  EXPECT_EQ(c.model.sliding_window, (std::vector<int64_t>{512, 512, 512, 512, 512, 0, 512}));
  EXPECT_EQ(c.model.rope_theta, 1e6);
  EXPECT_EQ(c.sliding_theta, 10000);
  EXPECT_EQ(c.activation, Activation::kGeluTanh);
  EXPECT_NEAR(c.attention_scale, 1 / std::sqrt(168.0), 1e-7);
  EXPECT_NEAR(c.embedding_scale, std::sqrt(2048.0), 1e-4);
  gemma["rope_local_base_freq"] = 5000.0;
  EXPECT_EQ(read(gemma).sliding_theta, 5000);
  gemma["_sliding_window_pattern"] = 2;
  EXPECT_EQ(read(gemma).model.sliding_window[1], 0);

  // As transformers 5 writes it.
  gemma["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 2e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 7000.0}}}};
  const ConfigFile both = read(gemma);
  EXPECT_EQ(both.model.rope_theta, 2e6);
  EXPECT_EQ(both.rope.factor, 8);
  EXPECT_EQ(both.sliding_theta, 7000);
  gemma["rope_parameters"]["sliding_attention"]["rope_type"] = "linear";
  refused(ErrorCode::kUnsupported, {"linear", "sliding_attention"}, gemma);
  gemma.erase("rope_parameters");
  for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    gemma[cap] = 30.0;
    refused(ErrorCode::kUnsupported, {cap, "soft cap"}, gemma);
    gemma.erase(cap);
  }
  gemma["use_bidirectional_attention"] = true;
  refused(ErrorCode::kUnsupported, {"use_bidirectional_attention"}, gemma);
}

TEST_F(ConfigTest, SoftCapsAreGemma2s) {
  json gemma;
  gemma["architectures"] = {"Gemma2ForCausalLM"};
  gemma["num_hidden_layers"] = 3;
  const ConfigFile usual = read(gemma);
  EXPECT_EQ(usual.model.attention_soft_cap, 50);
  EXPECT_EQ(usual.logit_soft_cap, 30);
  EXPECT_EQ(usual.model.sliding_window, (std::vector<int64_t>{4096, 0, 4096}));
  EXPECT_EQ(usual.sliding_theta, 0);
  gemma["attn_logit_softcapping"] = 20.5;
  base_["final_logit_softcapping"] = nullptr;  // not the default, as in transformers
  const ConfigFile own = read(gemma);
  EXPECT_EQ(own.model.attention_soft_cap, 20.5f);
  EXPECT_EQ(own.logit_soft_cap, 0);
  for (const double cap : {0.0, -1.0, 1e9}) {
    gemma["attn_logit_softcapping"] = cap;
    refused(ErrorCode::kCorrupt, {"attn_logit_softcapping"}, gemma);
  }
}

TEST_F(ConfigTest, MultipliersAreGranitesAlone) {
  const json fields = {{"embedding_multiplier", 12.0},
                       {"residual_multiplier", 0.25},
                       {"attention_multiplier", 0.015625},
                       {"logits_scaling", 8.0}};
  json granite = fields;
  granite["architectures"] = {"GraniteForCausalLM"};
  const ConfigFile c = read(granite);
  EXPECT_FLOAT_EQ(c.embedding_scale, 48);
  EXPECT_FLOAT_EQ(c.model.norm_eps, 1.6e-4f);
  EXPECT_FLOAT_EQ(c.attention_scale, 0.015625f);
  EXPECT_FLOAT_EQ(c.logit_scale, 0.125f);
  granite["residual_multiplier"] = 0;
  refused(ErrorCode::kCorrupt, {"residual_multiplier"}, granite);
  EXPECT_EQ(read(fields).embedding_scale, 1);
}

TEST_F(ConfigTest, SlidingWindowsFollowEachArchitecture) {
  const json mistral = {{"architectures", {"MistralForCausalLM"}}, {"sliding_window", 100}};
  EXPECT_EQ(read(mistral).model.sliding_window, (std::vector<int64_t>{100, 100, 100}));
  EXPECT_EQ(read({{"architectures", {"MistralForCausalLM"}}}).model.sliding_window[0], 4096);
  EXPECT_EQ(read({{"sliding_window", 100}}).model.sliding_window[0], 0);  // Llama has none

  json qwen2 = {{"architectures", {"Qwen2ForCausalLM"}},
                {"sliding_window", 100},
                {"use_sliding_window", false},
                {"max_window_layers", 2}};
  EXPECT_EQ(read(qwen2).model.sliding_window, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_TRUE(read(qwen2).model.qkv_bias);
  qwen2["use_sliding_window"] = true;
  EXPECT_EQ(read(qwen2).model.sliding_window, (std::vector<int64_t>{0, 0, 100}));
  qwen2["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(read(qwen2).model.sliding_window, (std::vector<int64_t>{100, 0, 100}));
  qwen2["layer_types"] = {"sliding_attention"};
  refused(ErrorCode::kCorrupt, {"layer_types"}, qwen2);
  qwen2["layer_types"] = {"linear_attention", "full_attention", "full_attention"};
  refused(ErrorCode::kUnsupported, {"linear_attention", "hybrid"}, qwen2);

  // A null must survive: merge_patch would take it for "remove".
  json config = base_;
  config.merge_patch(mistral);
  config["sliding_window"] = nullptr;
  write_file(folder_.path() / "config.json", config.dump());
  EXPECT_EQ(read_config(folder_.path()).model.sliding_window[0], 0);
}

TEST_F(ConfigTest, Qwen3HasNormsAndItsOwnHeadDim) {
  const ModelConfig c = read({{"architectures", {"Qwen3ForCausalLM"}}}).model;
  EXPECT_TRUE(c.qk_norm);
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(read({{"architectures", {"Qwen3ForCausalLM"}}, {"head_dim", 96}}).model.head_dim, 96);
}

TEST_F(ConfigTest, OtherArchitecturesAreRefusedByNameWithTheReason) {
  struct Case {
    const char* name;
    const char* reason;
  };
  for (const Case& c : std::initializer_list<Case>{{"DeepseekV2ForCausalLM", "MLA"},
                                                   {"DeepseekV3ForCausalLM", "MLA"},
                                                   {"MiniCPM3ForCausalLM", "MLA"},
                                                   {"Qwen3NextForCausalLM", "hybrid"},
                                                   {"JambaForCausalLM", "hybrid"},
                                                   {"MambaForCausalLM", "hybrid"},
                                                   {"Mamba2ForCausalLM", "hybrid"},
                                                   {"FalconH1ForCausalLM", "hybrid"},
                                                   {"RecurrentGemmaForCausalLM", "hybrid"},
                                                   {"MixtralForCausalLM", "MoE"},
                                                   {"Qwen2MoeForCausalLM", "MoE"},
                                                   {"Qwen3MoeForCausalLM", "MoE"},
                                                   {"GptOssForCausalLM", "MoE"},
                                                   {"GemmaForCausalLM", "not supported"},
                                                   {"Phi3SmallForCausalLM", "not supported"},
                                                   {"PhiMoEForCausalLM", "MoE"},
                                                   {"GraniteMoeForCausalLM", "MoE"},
                                                   {"GraniteMoeHybridForCausalLM", "hybrid"},
                                                   {"Gemma3ForConditionalGeneration", "decoder"},
                                                   {"Gemma3nForCausalLM", "not supported"},
                                                   {"GPT2LMHeadModel", "not supported"},
                                                   {"BertForMaskedLM", "decoder"}}) {
    refused(ErrorCode::kUnsupported,
            {c.name, c.reason,
             "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
             "Qwen3ForCausalLM"},
            {{"architectures", {c.name}}});
  }
  refused(ErrorCode::kUnsupported, {"jamba", "hybrid"},
          {{"architectures", nullptr}, {"model_type", "jamba"}});
  // A known name with foreign parts.
  refused(ErrorCode::kUnsupported, {"LlamaForCausalLM", "MLA"}, {{"kv_lora_rank", 512}});
  refused(ErrorCode::kUnsupported, {"LlamaForCausalLM", "MoE"}, {{"num_local_experts", 8}});
}

TEST_F(ConfigTest, VariantsAreRefused) {
  refused(ErrorCode::kUnsupported, {"gptq", "BF16"},
          {{"quantization_config", {{"quant_method", "gptq"}, {"bits", 4}}}});
  refused(ErrorCode::kUnsupported, {"hidden_act", "gelu"}, {{"hidden_act", "gelu"}});
  refused(ErrorCode::kUnsupported, {"head_dim", "40"}, {{"head_dim", 40}});
  refused(ErrorCode::kUnsupported, {"head_dim", "1024"}, {{"head_dim", 1024}});
  refused(ErrorCode::kUnsupported, {"32 query heads", "5 KV heads"}, {{"num_key_value_heads", 5}});
  refused(ErrorCode::kUnsupported, {"attention_bias", "Mistral"},
          {{"architectures", {"MistralForCausalLM"}}, {"attention_bias", true}});
  refused(ErrorCode::kUnsupported, {"mlp_bias", "Qwen2"},
          {{"architectures", {"Qwen2ForCausalLM"}}, {"mlp_bias", true}});
}

TEST_F(ConfigTest, MissingOrAbsurdFieldsAreNamed) {
  for (const char* field : {"hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "vocab_size", "max_position_embeddings"}) {
    refused(ErrorCode::kCorrupt, {field, "missing"}, {{field, nullptr}});
    for (const json& value : {json(0), json(-1), json(1.5), json("12"), json(1e300), json(true),
                              json::array(), json(uint64_t{1} << 63)}) {
      refused(ErrorCode::kCorrupt, {field}, {{field, value}});
    }
  }
  refused(ErrorCode::kCorrupt, {"num_key_value_heads"}, {{"num_key_value_heads", "8"}});
  refused(ErrorCode::kCorrupt, {"rms_norm_eps"}, {{"rms_norm_eps", 0}});
  refused(ErrorCode::kCorrupt, {"rope_theta"}, {{"rope_theta", -1}});
  refused(ErrorCode::kCorrupt, {"tie_word_embeddings"}, {{"tie_word_embeddings", "yes"}});
  refused(ErrorCode::kCorrupt, {"eos_token_id"}, {{"eos_token_id", "</s>"}});
  refused(ErrorCode::kCorrupt, {"hidden_size", "head_dim"}, {{"hidden_size", 2047}});
  refused(ErrorCode::kCorrupt, {"architectures"}, {{"architectures", json::array()}});
  refused(ErrorCode::kCorrupt, {"architectures"},
          {{"architectures", nullptr}, {"model_type", nullptr}});
  refused(ErrorCode::kCorrupt, {"num_key_value_heads", "missing"},
          {{"architectures", {"Qwen2ForCausalLM"}}, {"num_key_value_heads", nullptr}});
}

TEST_F(ConfigTest, MoreEndsOfTextComeFromTheGenerationConfig) {
  write_file(folder_.path() / "generation_config.json", R"({"eos_token_id": [128001, 128009]})");
  EXPECT_EQ(read(json::object()).model.eos, (std::vector<int32_t>{128001, 128008, 128009}));
  write_file(folder_.path() / "generation_config.json", "{");
  refused(ErrorCode::kCorrupt, {"generation_config.json"}, json::object());
}

TEST_F(ConfigTest, MalformedFilesAndMissingOnesAreNamed) {
  expect_error(ErrorCode::kNotFound, {"config.json"}, [&] { read_config(folder_.path()); });
  expect_error(ErrorCode::kNotFound, {"nowhere", "does not exist", "folder"},
               [&] { read_config(folder_.path() / "nowhere"); });
  const std::string whole = base_.dump();
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file(folder_.path() / "config.json", whole.substr(0, size));
    expect_error(ErrorCode::kCorrupt, {"config.json", "JSON"},
                 [&] { read_config(folder_.path()); });
  }
}

TEST_F(ConfigTest, WhatAFolderHoldsInPlaceOfAModelIsNamed) {
  const auto refused = [&](const std::vector<std::string>& words) {
    expect_error(ErrorCode::kNotFound, words, [&] { read_config(folder_.path()); });
  };
  write_file(folder_.path() / "model.safetensors", "weights alone");
  refused({"has no config.json", "expected a Hugging Face model folder"});
  expect_error(ErrorCode::kNotFound, {"model.safetensors is a file and no GGUF"},
               [&] { read_config(folder_.path() / "model.safetensors"); });
  for (const char* below : {"snapshots/0f1e", "q8"}) {
    const auto folder = folder_.path() / below;
    std::filesystem::create_directories(folder);
    refused({"has no config.json"});
    write_file(folder / "config.json", base_.dump());
    refused({"has no config.json", folder.string() + " has: name that"});
    EXPECT_EQ(read_config(folder).model.layers, 3);
    std::filesystem::rename(folder / "config.json", folder / "other.json");
  }
  for (const char* below : {"snapshots/0f1e", "q8"})
    write_file(folder_.path() / below / "config.json", base_.dump());
  refused({"has no config.json; expected"});  // which of the two is not for us to say
  write_file(folder_.path() / "adapter_config.json", "{}");
  refused({"is an adapter", "merge_and_unload"});
}

}  // namespace
}  // namespace pith
