// Models in GGUF files beside the same model as a folder of f32 weights: what the file says in its
// own names, order of rows and blocks of codes must compute the same.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "gguf_test_model.h"
#include "model/loaders/weights.h"
#include "pith/session.h"

namespace pith {
namespace {

using testing_files::expect_error;
using testing_files::TemporaryFolder;
using testing_files::write_file;
using namespace testing_gguf;

/// Logits of every position: a chunk of many tokens, then one by one.
std::vector<float> logits_of(const std::filesystem::path& path, bool f32) {
  StandaloneOptions options;
  options.policy = Policy::parse("exact,dtype=f32");
  options.context = 64;
  options.f32_arithmetic = f32;
  options.threads = 2;
  Session session(Model::load(path), options);
  std::vector<int32_t> chunk;
  for (int i = 0; i < 20; ++i) chunk.push_back(i * 37 % static_cast<int>(kVocab));
  std::vector<float> all;
  session.prefill_logits(chunk, [&](size_t, size_t count, const float* logits) {
    all.insert(all.end(), logits, logits + count * kVocab);
  });
  for (const int32_t token : {3, 90, 41, 3}) {
    const auto last = session.decode(token);
    all.insert(all.end(), last.begin(), last.end());
  }
  return all;
}

double nmse(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, square = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    square += double{b[i]} * b[i];
  }
  return difference / square;
}

void expect_twins(const TwoForms& model) {
  const std::vector<float> wanted = logits_of(model.write_folder(), true);
  EXPECT_LE(nmse(logits_of(model.write_gguf(), true), wanted), 1e-7);
  EXPECT_LE(nmse(logits_of(model.write_gguf(), false), wanted), 2e-3);
}

class EveryTypeTest : public testing::TestWithParam<WeightType> {};
INSTANTIATE_TEST_SUITE_P(Gguf, EveryTypeTest,
                         testing::ValuesIn(weight_types().begin(), weight_types().end()),
                         [](const auto& p) { return std::string(to_string(p.param)); });

TEST_P(EveryTypeTest, ComputesWhatItsNumbersDo) { expect_twins(TwoForms("llama", GetParam())); }

TEST(GgufModel, BiasesOfQwen2AndNormsOfQwen3) {
  expect_twins(TwoForms("qwen2"));
  expect_twins(TwoForms("qwen3", WeightType::kQ4K, 128));
}

// Files name no pattern of windows: every second layer sees everything.
TEST(GgufModel, SoftCapsWindowsAndNormsOfGemma2) {
  TwoForms model("gemma2");
  model.keys = [before = model.keys](GgufKeys& k) {
    before(k);
    k.u32("gemma2.attention.sliding_window", 8);
    k.f32("gemma2.attn_logit_softcapping", 0.5f);
    k.f32("gemma2.final_logit_softcapping", 3);
  };
  model.config["sliding_window"] = 8;
  model.config["query_pre_attn_scalar"] = 64;
  model.config["attn_logit_softcapping"] = 0.5;
  model.config["final_logit_softcapping"] = 3.0;
  expect_twins(model);
  const auto loaded = Model::load(model.write_gguf());
  EXPECT_EQ(loaded->config().attention_soft_cap, 0.5f);
  EXPECT_EQ(loaded->config().sliding_window, (std::vector<int64_t>{8, 0}));
  model.config["attn_logit_softcapping"] = 50.0;
  EXPECT_GT(nmse(logits_of(model.write_folder(), true), logits_of(model.write_gguf(), true)), 1e-4);
}

TEST(GgufModel, MatricesOfManyTypes) {
  TwoForms model("llama", WeightType::kQ4K);
  const auto types = weight_types();
  std::vector<Stored> before = std::move(model.stored);
  model.stored.clear();
  for (size_t i = 0; i < before.size(); ++i) {
    Stored& s = before[i];
    const bool query = s.gguf.find("attn_q") != std::string::npos;
    const bool key = s.gguf.find("attn_k") != std::string::npos;
    const bool norm = s.shape.size() == 1;
    model.add(s.gguf, s.hugging_face, norm ? WeightType::kF32 : types[i % types.size()], s.shape,
              query ? kHeads
              : key ? kKvHeads
                    : 0);
  }
  expect_twins(model);
}

TEST(GgufModel, AnOutputMatrixOfItsOwn) {
  TwoForms model("llama", WeightType::kQ5Zero);
  model.add("output.weight", "lm_head.weight", WeightType::kQ6K, {kVocab, kHidden});
  model.config["tie_word_embeddings"] = false;
  expect_twins(model);
}

TEST(GgufModel, FusedQueriesKeysAndValues) {
  TwoForms model("llama", WeightType::kQ4One);
  const std::vector<float> apart = logits_of(model.write_gguf(), true);
  for (size_t l = 0; l < kLayers; ++l) {
    const std::string layer = "blk." + std::to_string(l) + ".";
    Stored fused{layer + "attn_qkv.weight", "", WeightType::kQ4One, {0, kHidden}, {}, {}};
    for (const char* part : {"attn_q", "attn_k", "attn_v"}) {
      const auto found =
          std::find_if(model.stored.begin(), model.stored.end(),
                       [&](const Stored& s) { return s.gguf == layer + part + ".weight"; });
      fused.bytes.insert(fused.bytes.end(), found->bytes.begin(), found->bytes.end());
      fused.shape[0] += found->shape[0];
      model.stored.erase(found);
    }
    model.stored.push_back(std::move(fused));
  }
  EXPECT_EQ(logits_of(model.write_gguf(), true), apart);
}

TEST(GgufModel, ItsFingerprintIsOfTheBlocks) {
  const TwoForms model("llama", WeightType::kQ4K), other("llama", WeightType::kQ5K);
  const auto print = [](const std::filesystem::path& path) {
    return Model::load(path)->config().fingerprint;
  };
  EXPECT_EQ(print(model.write_gguf()), print(model.write_gguf()));
  EXPECT_NE(print(model.write_gguf()), print(model.write_folder()));
  EXPECT_NE(print(model.write_gguf()), print(other.write_gguf()));
  // In Hugging Face's order of rows: f32 weights have one print in both forms.
  const TwoForms dense("llama", WeightType::kF32);
  EXPECT_EQ(print(dense.write_gguf()), print(dense.write_folder()));
}

TEST(GgufModel, WhatIsNotSupportedIsNamed) {
  const auto refused = [](ErrorCode code, const std::vector<std::string>& words,
                          const std::function<void(TwoForms&)>& change,
                          const char* architecture = "llama") {
    TwoForms model(architecture);
    change(model);
    const auto path = model.write_gguf();
    expect_error(code, words, [&] { Model::load(path); });
  };
  const auto more = [](const std::function<void(GgufKeys&)>& add) {
    return [add](TwoForms& m) {
      m.keys = [before = m.keys, add](GgufKeys& k) {
        before(k);
        add(k);
      };
    };
  };
  refused(
      ErrorCode::kUnsupported, {"'mamba'", "llama, qwen2"}, [](TwoForms&) {}, "mamba");
  refused(ErrorCode::kUnsupported, {"mixture of experts"},
          more([](GgufKeys& k) { k.u32("llama.expert_count", 8); }));
  refused(ErrorCode::kUnsupported, {"attn_logit_softcapping is 50"},
          more([](GgufKeys& k) { k.f32("llama.attn_logit_softcapping", 50); }));
  refused(ErrorCode::kCorrupt, {"gemma2.final_logit_softcapping", "is -3"}, more([](GgufKeys& k) {
            k.u32("gemma2.attention.sliding_window", 8);
            k.f32("gemma2.final_logit_softcapping", -3);
          }),
          "gemma2");
  refused(ErrorCode::kUnsupported, {"attention.scale is 0.5"},
          more([](GgufKeys& k) { k.f32("llama.attention.scale", 0.5f); }));
  refused(
      ErrorCode::kUnsupported, {"OLMo 3"},
      [](TwoForms& m) {
        m.keys = [](GgufKeys& k) { k.u32("olmo2.attention.sliding_window", 4096); };
      },
      "olmo2");
  refused(ErrorCode::kUnsupported, {"rope_factors_long.weight", "no place"},
          [](TwoForms& m) { m.add("rope_factors_long.weight", "", WeightType::kF32, {32}); });
  refused(ErrorCode::kUnsupported, {"RoPE scaling 'yarn'"},
          more([](GgufKeys& k) { k.text("llama.rope.scaling.type", "yarn"); }));
  refused(ErrorCode::kUnsupported, {"turns 32 of 64"},
          more([](GgufKeys& k) { k.u32("llama.rope.dimension_count", 32); }));
  refused(ErrorCode::kUnsupported, {"quantization_version"},
          more([](GgufKeys& k) { k.u32("general.quantization_version", 1); }));
  refused(ErrorCode::kCorrupt, {"'llama.block_count' is missing"},
          [](TwoForms& m) { m.keys = [](GgufKeys&) {}; });
  refused(ErrorCode::kCorrupt, {"'llama.vocab_size'"},
          more([](GgufKeys& k) { k.text("llama.vocab_size", "many"); }));
  refused(ErrorCode::kCorrupt,
          {"token_embd.weight", "[96, 256]; by the file's keys it is [97, 256]"},
          more([](GgufKeys& k) { k.u32("llama.vocab_size", 97); }));
  refused(ErrorCode::kUnsupported, {"blk.0.ffn_gate_inp.weight", "no place"},
          [](TwoForms& m) { m.add("blk.0.ffn_gate_inp.weight", "", WeightType::kF32, {kHidden}); });
  refused(ErrorCode::kNotFound, {"attn_q"}, [](TwoForms& m) {
    std::erase_if(m.stored, [](const Stored& s) { return s.gguf == "blk.1.attn_q.weight"; });
  });
  refused(ErrorCode::kNonFinite, {"blk.1.ffn_down.weight"}, [](TwoForms& m) {
    for (Stored& s : m.stored) {
      if (s.gguf != "blk.1.ffn_down.weight") continue;
      s.bytes[34 * 77] = std::byte{0}, s.bytes[34 * 77 + 1] = std::byte{0x7C};
    }
  });
}

TEST(GgufModel, TypesThatAreNotMultipliedAreNamed) {
  TwoForms model("llama");
  std::string bytes = testing_files::read_file(model.write_gguf());
  // ffn_up [512, 256] as IQ3_S: 110 bytes for 256 weights are fewer than Q8_0's.
  const size_t at = bytes.find("blk.0.ffn_up.weight") + 19 + 4 + 16;
  bytes[at] = 21;
  const TemporaryFolder folder;
  write_file(folder.path() / "x.gguf", bytes);
  expect_error(ErrorCode::kUnsupported, {"blk.0.ffn_up.weight", "IQ3_S", "Q4_K"},
               [&] { Model::load(folder.path() / "x.gguf"); });
}

}  // namespace
}  // namespace pith
