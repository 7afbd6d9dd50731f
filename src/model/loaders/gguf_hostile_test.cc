// Files that broke other readers of GGUF, one test for each kind (CVE and issue numbers are
// theirs). Faults of the container alone are in src/core/gguf_test.cc, with tokenizers'
// keys in tokenizer_gguf_test.cc, with templates in src/chat/template_test.cc.

#include <gtest/gtest.h>

#include <chrono>
#include <functional>

#include "gguf_test_model.h"
#include "model/loaders/weights.h"
#include "model/tokenizers/tokenizer_kinds.h"

namespace pith {
namespace {

using testing_files::expect_error;
using namespace testing_gguf;

using Change = std::function<void(GgufKeys&)>;

/// A model's own keys, but for its numbers of layers and of heads.
void other_keys(GgufKeys& k) {
  k.u32("llama.embedding_length", kHidden);
  k.u32("llama.feed_forward_length", kInner);
  k.u32("llama.attention.head_count_kv", kKvHeads);
  k.u32("llama.attention.key_length", 64);
  k.u32("llama.context_length", 512);
  k.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
}

void refused(ErrorCode code, const std::vector<std::string>& words, const Change& layers) {
  TwoForms model("llama");
  model.keys = [&](GgufKeys& k) {
    layers(k);
    k.u32("llama.attention.head_count", kHeads);
    other_keys(k);
  };
  const auto path = model.write_gguf();
  expect_error(code, words, [&] { Model::load(path); });
}

// llama.cpp #25513, #25821, #26051: more layers than a fixed array has.
TEST(GgufHostile, NumbersOfLayersAreBounded) {
  const auto layers = [](uint32_t n) {
    return [n](GgufKeys& k) { k.u32("llama.block_count", n); };
  };
  for (const uint32_t n : {0u, 4097u, 1u << 31, 0xFFFFFFFFu}) {
    refused(ErrorCode::kCorrupt, {"llama.block_count"}, layers(n));
  }
  // As many as are allowed, of which the file has two.
  for (const uint32_t n : {3u, 513u, 4096u}) {
    refused(ErrorCode::kNotFound, {"'blk.2."}, layers(n));
  }
}

TEST(GgufHostile, RefusalsNameTheFilesKeys) {
  const auto says = [](uint32_t kv_heads, uint32_t hidden, uint32_t dim, const std::string& words) {
    TwoForms model("llama");
    model.keys = [&](GgufKeys& k) {
      k.u32("llama.block_count", kLayers);
      k.u32("llama.embedding_length", hidden);
      k.u32("llama.feed_forward_length", kInner);
      k.u32("llama.attention.head_count", 4);
      k.u32("llama.attention.head_count_kv", kv_heads);
      if (dim > 0) k.u32("llama.attention.key_length", dim);
      k.u32("llama.context_length", 512);
      k.f32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    };
    const auto path = model.write_gguf();
    expect_error(ErrorCode::kUnsupported, {path.string(), words}, [&] { Model::load(path); });
  };
  says(3, 256, 64, "attention.head_count (4) is no multiple of llama.attention.head_count_kv (3)");
  says(2, 256, 100, "head_dim, llama.attention.key_length, is 100; supported: multiples of 16");
  says(2, 160, 0, "head_dim, llama.embedding_length by attention.head_count, is 40; supported");
  TwoForms images("clip");
  const auto path = images.write_gguf();
  expect_error(ErrorCode::kUnsupported, {"reads images (mmproj)"}, [&] { Model::load(path); });
}

TEST(GgufHostile, ListsForEachLayerHaveThatLength) {
  TwoForms model("llama");
  const auto load = [&](const std::vector<int32_t>& heads) {
    model.keys = [&](GgufKeys& k) {
      k.u32("llama.block_count", kLayers);
      k.i32s("llama.attention.head_count", heads);
      other_keys(k);
    };
    return Model::load(model.write_gguf());
  };
  EXPECT_EQ(load({kHeads, kHeads})->config().query_heads, static_cast<int>(kHeads));
  for (const std::vector<int32_t>& wrong : {std::vector<int32_t>{},
                                            {kHeads},
                                            std::vector<int32_t>(3, kHeads),
                                            std::vector<int32_t>(600, kHeads)}) {
    expect_error(ErrorCode::kCorrupt, {"head_count", "numbers for 2 layers"}, [&] { load(wrong); });
  }
  expect_error(ErrorCode::kUnsupported, {"differs from layer to layer"}, [&] { load({4, 2}); });
  expect_error(ErrorCode::kCorrupt, {"head_count"}, [&] { load({4, -4}); });
}

// CVE-2026-7482 (Ollama): shapes that are in the file, but are not what the config computes with.
TEST(GgufHostile, ShapesAreThoseOfTheConfig) {
  for (const char* name : {"blk.0.ffn_down.weight", "blk.1.attn_k.weight", "token_embd.weight",
                           "output_norm.weight", "blk.1.attn_norm.weight"}) {
    TwoForms model("llama");
    for (Stored& s : model.stored) {
      if (s.gguf != name) continue;
      s.bytes.resize(s.bytes.size() / 2);
      s.shape.front() /= 2;
    }
    model.keys = [before = model.keys](GgufKeys& k) {
      before(k);
      k.u32("llama.vocab_size", kVocab);
    };
    const auto path = model.write_gguf();
    expect_error(ErrorCode::kCorrupt, {name, "has shape", "by the file's keys"},
                 [&] { Model::load(path); });
  }
  // Heads that do not fit the matrices: rows would be put in order past their end.
  TwoForms model("llama");
  const auto path = model.write_gguf();
  std::string bytes = testing_files::read_file(path);
  const size_t at = bytes.find("llama.attention.key_length") + 26 + 4;
  ASSERT_EQ(bytes[at], 64);
  bytes[at] = 80;
  testing_files::write_file(path, bytes);
  expect_error(ErrorCode::kCorrupt, {"attn_q.weight", "[256, 256]", "[320, 256]"},
               [&] { Model::load(path); });
}

// A block holds 32 numbers of a bias: rows of one number cannot be put in order, nor taken apart.
TEST(GgufHostile, VectorsOfBlocksAreRefusedBeforeTheyMove) {
  for (const WeightType type : {WeightType::kQ8Zero, WeightType::kQ4Zero}) {
    for (const char* name : {"blk.0.attn_q.bias", "blk.0.attn_k.bias", "blk.1.attn_q.bias"}) {
      TwoForms model("llama");
      const bool query = std::string_view(name).find("_q") != std::string_view::npos;
      const size_t rows = query ? 256 : 64 * kKvHeads;
      model.add(name, "", type, {rows});
      const auto path = model.write_gguf();
      expect_error(ErrorCode::kUnsupported, {name, to_string(type), "F32, F16 and BF16"},
                   [&] { Model::load(path); });
    }
  }
}

TEST(GgufHostile, AttentionThatIsNotCausalIsRefused) {
  TwoForms model("llama");
  const auto with = [&](bool causal) {
    model.keys = [before = model.keys, causal](GgufKeys& k) {
      before(k);
      k.flag("llama.attention.causal", causal);
    };
    return model.write_gguf();
  };
  EXPECT_NO_THROW(Model::load(TwoForms("llama").write_gguf()));
  const auto path = with(false);
  expect_error(ErrorCode::kUnsupported, {"llama.attention.causal is false", "supported: causal"},
               [&] { Model::load(path); });
}

TEST(GgufHostile, WhatIsMissingHasTheFilesName) {
  TwoForms model("llama");
  std::erase_if(model.stored, [](const Stored& s) { return s.gguf == "blk.1.ffn_norm.weight"; });
  const auto path = model.write_gguf();
  expect_error(ErrorCode::kNotFound, {"'blk.1.ffn_norm.weight'"}, [&] { Model::load(path); });
}

// llama.cpp #26690: lists of another type than the reader takes for granted. CVE-2025-49847,
// CVE-2025-52566: lengths that a narrower integer does not hold are in BrokenKeysAreCorrupt.
TEST(GgufHostile, ListsOfATokenizerAreReadByTheirOwnType) {
  const std::vector<std::string> tokens = {"<unk>", "<s>", "</s>", "a"};
  const auto load = [&](const Change& lists) {
    GgufKeys keys;
    keys.text("tokenizer.ggml.model", "llama");
    keys.texts("tokenizer.ggml.tokens", tokens);
    lists(keys);
    const std::string head = gguf_head(keys, {});
    return load_gguf_tokenizer(Gguf::parse(std::as_bytes(std::span(head)), "x.gguf"));
  };
  EXPECT_EQ(load([](GgufKeys& k) {
              k.f32s("tokenizer.ggml.scores", {0, 0, 0, -1});
            })->vocab_size(),
            4);
  expect_error(ErrorCode::kCorrupt, {"scores", "i32[4]; expected f32 or f64"}, [&] {
    load([](GgufKeys& k) { k.i32s("tokenizer.ggml.scores", {0, 0, 0, 1}); });
  });
  expect_error(ErrorCode::kCorrupt, {"token_type"}, [&] {
    load([](GgufKeys& k) {
      k.f32s("tokenizer.ggml.scores", {0, 0, 0, -1});
      k.f32s("tokenizer.ggml.token_type", {2, 3, 3, 1});
    });
  });
  expect_error(ErrorCode::kCorrupt, {"token_type", "3 entries for 4"}, [&] {
    load([](GgufKeys& k) {
      k.f32s("tokenizer.ggml.scores", {0, 0, 0, -1});
      k.i32s("tokenizer.ggml.token_type", {2, 3, 3});
    });
  });
}

// llama.cpp #19919: a check for every element that asks the system something.
TEST(GgufHostile, LongListsAreReadAtOnce) {
  std::vector<std::string> tokens(500000);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = std::to_string(i);
  GgufKeys keys;
  keys.texts("tokenizer.ggml.tokens", tokens);
  keys.i32s("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), 1));
  const std::string head = gguf_head(keys, {});
  const auto start = std::chrono::steady_clock::now();
  const Gguf file = Gguf::parse(std::as_bytes(std::span(head)), "x.gguf");
  EXPECT_EQ(file.texts("tokenizer.ggml.tokens")->size(), tokens.size());
  EXPECT_EQ(file.integers("tokenizer.ggml.token_type", 0, 6)->size(), tokens.size());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 2) << "seconds; about 0.01 where nothing else runs";
}

// The same with scales that are no numbers: RoPE's lists and what Granite multiplies by.
TEST(GgufHostile, NumbersThatScaleAreChecked) {
  for (const float wrong : {-1.0f, std::nanf(""), HUGE_VALF, 2e6f}) {
    refused(ErrorCode::kCorrupt, {"rope.scaling.factor"}, [&](GgufKeys& k) {
      k.u32("llama.block_count", kLayers);
      k.f32("llama.rope.scaling.factor", wrong);
    });
  }
  TwoForms model("llama");
  model.add("rope_freqs.weight", "", WeightType::kF32, {32});
  model.stored.back().bytes.assign(128, std::byte{0});
  const auto path = model.write_gguf();
  expect_error(ErrorCode::kCorrupt, {"rope_freqs.weight", "above 0"}, [&] { Model::load(path); });
}

}  // namespace
}  // namespace pith
