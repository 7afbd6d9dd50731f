// Tokenizers from the keys of GGUF files: those of tests/data/tokenizers written as GGUF and held
// against what their own files give, and two real ones against the reference libraries' ids
// (tests/data/gguf_tokenizers.json, made by tools/golden/make_gguf_tokenizers.py).

#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "core/gguf.h"
#include "model/test_files.h"
#include "model/tokenizers/tokenizer_kinds.h"
#include "paths.h"
#include "pith_tools/catalogue.h"
#include "tools/quantize/gguf_writer.h"

namespace pith {
namespace {

using nlohmann::json;
using testing_files::expect_error;

const std::filesystem::path kData = repo_dir() / "tests" / "data";

json read(const std::filesystem::path& file) {
  std::ifstream stream(file);
  return json::parse(stream);
}

const json& strings() {
  static const json all = read(kData / "tokenizers" / "strings.json").at("text");
  return all;
}

/// The keys of a tokenizer, before they are written.
struct Spec {
  std::string model = "gpt2", pre = "gpt-2";
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  std::vector<float> scores;
  std::function<void(GgufKeys&)> more = [](GgufKeys&) {};

  std::unique_ptr<Tokenizer> load() const {
    GgufKeys keys;
    keys.text("tokenizer.ggml.model", model);
    if (!pre.empty()) keys.text("tokenizer.ggml.pre", pre);
    keys.texts("tokenizer.ggml.tokens", tokens);
    if (!types.empty()) keys.i32s("tokenizer.ggml.token_type", types);
    if (model == "gpt2") keys.texts("tokenizer.ggml.merges", merges);
    if (!scores.empty()) keys.f32s("tokenizer.ggml.scores", scores);
    more(keys);
    const std::string head = gguf_head(keys, {});
    return load_gguf_tokenizer(Gguf::parse(std::as_bytes(std::span(head)), "test.gguf"));
  }
};

Spec from_json(const std::string& name, const std::string& pre) {
  const json root = read(kData / "tokenizers" / name / "tokenizer.json");
  Spec spec;
  spec.pre = pre;
  const auto put = [&](const std::string& token, size_t id, int32_t type) {
    if (spec.tokens.size() <= id) {
      spec.tokens.resize(id + 1);
      spec.types.resize(id + 1, 5);
    }
    spec.tokens[id] = token;
    spec.types[id] = type;
  };
  for (const auto& [token, id] : root["model"]["vocab"].items()) put(token, id.get<size_t>(), 1);
  for (const json& token : root["added_tokens"]) {
    put(token["content"].get<std::string>(), token["id"].get<size_t>(),
        token["special"].get<bool>() ? 3 : 4);
  }
  for (const json& merge : root["model"]["merges"]) {
    spec.merges.push_back(merge.is_string()
                              ? merge.get<std::string>()
                              : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return spec;
}

/// SentencePiece's test model. Its scores are minus the rank of a merge.
Spec from_sentencepiece() {
  sentencepiece::SentencePieceProcessor model;
  const auto path = kData / "tokenizers" / "llama2" / "tokenizer.model";
  if (!model.Load(path.string()).ok()) throw std::runtime_error("no SentencePiece model");
  Spec spec;
  spec.model = "llama";
  spec.pre = "default";
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    spec.tokens.push_back(model.IdToPiece(id));
    spec.scores.push_back(model.GetScore(id));
    spec.types.push_back(model.IsControl(id)   ? 3
                         : model.IsUnknown(id) ? 2
                         : model.IsByte(id)    ? 6
                                               : 1);
  }
  return spec;
}

void expect_same(const Tokenizer& got, const Tokenizer& want) {
  ASSERT_GE(got.vocab_size(), want.vocab_size());
  for (const json& string : strings()) {
    const auto text = string.get<std::string>();
    for (const bool parse_special : {true, false}) {
      const auto ids = want.encode(text, parse_special);
      ASSERT_EQ(got.encode(text, parse_special), ids) << string;
      ASSERT_EQ(got.decode(ids), want.decode(ids)) << string;
      ASSERT_EQ(got.decode(ids, true), want.decode(ids, true)) << string;
    }
  }
}

TEST(GgufTokenizer, OfByteLevelBpeIsThatOfItsJson) {
  for (const auto& [name, pre] : {std::pair("gpt2", "gpt-2"), std::pair("llama3", "llama-bpe"),
                                  std::pair("qwen2", "qwen2")}) {
    SCOPED_TRACE(name);
    Spec spec = from_json(name, pre);
    spec.more = [](GgufKeys& keys) { keys.u32("tokenizer.ggml.bos_token_id", 0); };
    const auto got = spec.load();
    expect_same(*got, *load_tokenizer(kData / "tokenizers" / name));
  }
}

TEST(GgufTokenizer, OfScoresIsThatOfSentencePiece) {
  const auto got = from_sentencepiece().load();
  const auto want = load_tokenizer(kData / "tokenizers" / "llama2");
  expect_same(*got, *want);
  EXPECT_EQ(got->bos(), 1);
  EXPECT_EQ(got->eos_ids(), (std::vector<int32_t>{2}));
  EXPECT_TRUE(got->add_bos());
  EXPECT_EQ(got->find("</s>"), 2);
}

TEST(GgufTokenizer, PutsNoSpaceInFrontIfTheFileSaysSo) {
  Spec spec = from_sentencepiece();
  const auto with = spec.load();
  spec.more = [](GgufKeys& keys) {
    keys.flag("tokenizer.ggml.add_space_prefix", false);
    keys.flag("tokenizer.ggml.add_bos_token", false);
  };
  const auto without = spec.load();
  for (const char* text : {"a", "some text", "x</s>y z"}) {
    EXPECT_EQ(without->encode(std::string(" ") + text, false), with->encode(text, false)) << text;
    EXPECT_EQ(without->decode(without->encode(text)), text);
  }
  EXPECT_FALSE(without->add_bos());
}

TEST(GgufTokenizer, UnusedPiecesFallApart) {
  Spec spec{.model = "llama",
            .pre = "",
            .tokens = {"<unk>", "<s>", "</s>", "a", "b", "c", "ab", "abc", "", "", "<0x64>"},
            .merges = {},
            .types = {2, 3, 3, 1, 1, 1, 1, 5, 5, 5, 6},
            .scores = {0, 0, 0, -9, -9, -9, -1, -2, 0, 0, 0}};
  spec.more = [](GgufKeys& keys) { keys.flag("tokenizer.ggml.add_space_prefix", false); };
  EXPECT_EQ(spec.load()->encode("abcab"), (std::vector<int32_t>{6, 5, 6}));
  EXPECT_EQ(spec.load()->encode("dae"), (std::vector<int32_t>{10, 3, 0}));
  EXPECT_EQ(spec.load()->encode("a<s>c"), (std::vector<int32_t>{3, 1, 5}));
  spec.types[7] = 1;
  EXPECT_EQ(spec.load()->encode("abcab"), (std::vector<int32_t>{7, 6}));
}

TEST(GgufTokenizer, OfTokensWithTheSameTextTheLastCounts) {
  Spec bpe = from_json("qwen2", "qwen2");
  const auto want = bpe.load();
  const auto old = want->vocab_size();
  for (const int32_t type : {3, 3, 5, 5}) {
    bpe.tokens.emplace_back(type == 3 ? "[PAD]" : "<unused>");
    bpe.types.push_back(type);
  }
  bpe.tokens.push_back(bpe.tokens[300]);
  bpe.types.push_back(1);
  const auto got = bpe.load();
  EXPECT_EQ(got->encode("a[PAD]", true).back(), old + 1);
  EXPECT_EQ(got->find("[PAD]"), old + 1);
  EXPECT_EQ(got->piece(old), "[PAD]");
  EXPECT_TRUE(got->is_special(old) && got->is_special(old + 1));
  EXPECT_EQ(got->piece(old + 4), want->piece(300));
  EXPECT_EQ(got->piece(300), want->piece(300));
  EXPECT_EQ(got->encode(want->piece(300)), std::vector<int32_t>{old + 4});

  Spec scored = from_sentencepiece();
  const auto size = static_cast<int32_t>(scored.tokens.size());
  const std::string common = scored.tokens[300];
  for (const auto& [token, type] :
       {std::pair("<unused>", 5), std::pair("<unused>", 5), std::pair(common.c_str(), 1)}) {
    scored.tokens.emplace_back(token);
    scored.types.push_back(type);
    scored.scores.push_back(type == 5 ? 0 : scored.scores[300]);
  }
  EXPECT_EQ(scored.load()->find(common), size + 2);
  EXPECT_EQ(scored.load()->piece(300), scored.load()->piece(size + 2));
}

// Converters of some years typed them normal, or wrote no types: a newline became <unk>.
TEST(GgufTokenizer, BytesAreBytesWhateverTheirType) {
  const Spec right = from_sentencepiece();
  const auto want = right.load();
  Spec normal = right, none = right;
  for (int32_t& type : normal.types)
    if (type == 6) type = 1;
  none.types.clear();
  for (const Spec& spec : {normal, none}) {
    const auto got = spec.load();
    expect_same(*got, *want);
    EXPECT_EQ(got->decode(got->encode("a\n\u00e9\U0001F600")), "a\n\u00e9\U0001F600");
    EXPECT_TRUE(got->is_special(2));
  }
}

TEST(GgufTokenizer, EndsWhereTheFileSaysAndAtSpecialTokensThatEnd) {
  Spec spec = from_json("qwen2", "qwen2");
  const auto id = [&](const char* token) {
    const auto at = std::find(spec.tokens.begin(), spec.tokens.end(), token);
    return static_cast<int32_t>(at - spec.tokens.begin());
  };
  const int32_t end = id("<|im_end|>"), text_end = id("<|endoftext|>"), start = id("<|im_start|>");
  EXPECT_EQ(spec.load()->bos(), -1);
  EXPECT_FALSE(spec.load()->add_bos());
  EXPECT_EQ(spec.load()->eos_ids(),
            (std::vector<int32_t>{std::min(end, text_end), std::max(end, text_end)}));
  spec.more = [&](GgufKeys& keys) {
    keys.u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(start));
    keys.i32("tokenizer.ggml.eos_token_id", end);
    keys.u16("tokenizer.ggml.eot_token_id", 7);
  };
  EXPECT_EQ(spec.load()->eos_ids(), (std::vector<int32_t>{end, 7, text_end}));
  EXPECT_EQ(spec.load()->bos(), start);
  spec.types[text_end] = 4;  // one that the user may write ends nothing
  EXPECT_EQ(spec.load()->eos_ids(), (std::vector<int32_t>{end, 7}));
  EXPECT_FALSE(spec.load()->is_special(text_end));
  spec.pre = "llama-bpe";
  EXPECT_TRUE(spec.load()->add_bos());
}

TEST(GgufTokenizer, RefusesByName) {
  Spec spec = from_json("gpt2", "gpt-2");
  const auto refused = [&](const std::vector<std::string>& words, const Spec& other) {
    expect_error(ErrorCode::kUnsupported, words, [&] { other.load(); });
  };
  Spec other = spec;
  other.model = "rwkv";
  refused({"test.gguf", "rwkv", "supported: gpt2"}, other);
  other = spec;
  other.pre = "kimi-k2";
  refused({"test.gguf", "kimi-k2", "llama-bpe", "smollm"}, other);
  for (const char* pre : {"", "default"}) {
    other.pre = pre;
    refused({"test.gguf", "tokenizer.ggml.pre", "guess", "qwen2", "kanana2. Convert"}, other);
  }
}

TEST(GgufTokenizer, BrokenKeysAreCorrupt) {
  const auto broken = [](const std::vector<std::string>& words, const Spec& spec) {
    std::vector<std::string> all = words;
    all.push_back("test.gguf");
    expect_error(ErrorCode::kCorrupt, all, [&] { spec.load(); });
  };
  const Spec bpe = from_json("gpt2", "gpt-2"), scored = from_sentencepiece();
  const auto with = [&](Spec spec, const std::function<void(Spec&)>& edit) {
    edit(spec);
    return spec;
  };
  broken({"tokens", "0 tokens"}, with(bpe, [](Spec& s) { s.tokens.clear(); }));
  broken({"token_type", "entries"}, with(bpe, [](Spec& s) { s.types.pop_back(); }));
  broken({"token_type", "place 3"}, with(bpe, [](Spec& s) { s.types[3] = 7; }));
  broken({"no pair"}, with(bpe, [](Spec& s) { s.merges[0] = "ab"; }));
  broken({"vocabulary lacks"}, with(bpe, [](Spec& s) { s.merges[0] = "qqq r"; }));
  broken({"of 1048577 bytes"},
         with(bpe, [](Spec& s) { s.tokens[3] = std::string((1 << 20) + 1, 'x'); }));
  broken({"scores", "missing"}, with(scored, [](Spec& s) { s.scores.clear(); }));
  broken({"scores", "entries"}, with(scored, [](Spec& s) { s.scores.pop_back(); }));
  broken({"scores", "finite"}, with(scored, [](Spec& s) { s.scores[5] = NAN; }));
  broken({"byte token", "zz"}, with(scored, [](Spec& s) { s.tokens[5] = "zz"; }));
  broken({"eos_token_id"}, with(scored, [](Spec& s) {
           s.more = [](GgufKeys& keys) { keys.u32("tokenizer.ggml.eos_token_id", 1u << 31); };
         }));
  broken({"beginning-of-sequence"}, with(bpe, [](Spec& s) {
           s.more = [](GgufKeys& keys) { keys.flag("tokenizer.ggml.add_bos_token", true); };
         }));
}

class RealGguf : public testing::TestWithParam<const char*> {};

TEST_P(RealGguf, GivesTheReferencesIds) {
  const KnownModel& model = *known_model(GetParam());
  const auto file = pulled_file(model);
  if (!file) GTEST_SKIP() << "no " << model.file << ": `pith pull " << model.name << "` gets it";
  const json golden = read(kData / "gguf_tokenizers.json").at(GetParam());
  const auto tokenizer = load_tokenizer(*file);
  const json& rows = golden.at("rows");
  ASSERT_GT(rows.size(), 200u);
  for (size_t i = 0; i < rows.size(); ++i) {
    const json& string = strings()[rows[i].get<size_t>()];
    EXPECT_EQ(tokenizer->encode(string.get<std::string>()),
              golden.at("ids")[i].get<std::vector<int32_t>>())
        << string;
  }
  for (const json& one : golden.at("extra")) {
    EXPECT_EQ(tokenizer->encode(one[0].get<std::string>()), one[1].get<std::vector<int32_t>>())
        << one[0];
  }
}

INSTANTIATE_TEST_SUITE_P(Models, RealGguf, testing::Values("smollm2", "gemma3-270m"),
                         [](const auto& one) { return std::string(one.param).substr(0, 6); });

TEST(RealGgufs, KnowTheirSpecialTokens) {
  const auto smollm2 = pulled_file(*known_model("smollm2"));
  const auto gemma3 = pulled_file(*known_model("gemma3-270m"));
  if (!smollm2 || !gemma3) GTEST_SKIP() << "`pith pull smollm2` and `pith pull gemma3-270m` first";
  const auto a = load_tokenizer(*smollm2), b = load_tokenizer(*gemma3);
  EXPECT_EQ(a->vocab_size(), 49152);
  EXPECT_EQ(a->bos(), 1);
  EXPECT_FALSE(a->add_bos());
  EXPECT_EQ(a->eos_ids(), (std::vector<int32_t>{2, 0}));
  EXPECT_EQ(b->vocab_size(), 262144);
  EXPECT_EQ(b->bos(), 2);
  EXPECT_TRUE(b->add_bos());
  EXPECT_EQ(b->eos_ids(), (std::vector<int32_t>{1, 106}));
  EXPECT_EQ(b->decode(b->encode("Größe 漢字 \n🚀 x")), "Größe 漢字 \n🚀 x");
}

}  // namespace
}  // namespace pith
