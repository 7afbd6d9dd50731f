// Words as the tokenizers package cuts them, by the regular expressions of the models' own files:
// tests/data/tokenizer_splits.json, made by tools/golden/make_splits.py.

#include "model/tokenizers/split_rules.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "model/tokenizers/tokenizer_split.h"
#include "paths.h"
#include "pith/error.h"

namespace pith {
namespace {

using nlohmann::json;

json read(const char* name) {
  std::ifstream stream(repo_dir() / "tests" / "data" / name);
  return json::parse(stream);
}

std::vector<size_t> word_lengths(const PreTokenizer& splitter, const std::string& text) {
  std::vector<size_t> lengths;
  if (text.empty()) return lengths;
  Words words;
  splitter.split(text, true, words);
  size_t begin = 0;
  for (const size_t end : words.ends) lengths.push_back(end - std::exchange(begin, end));
  return lengths;
}

TEST(SplitRules, CutAsTheReferenceDoesByNameAndByExpression) {
  const json root = read("tokenizer_splits.json");
  const json strings = read("tokenizers/strings.json").at("text");
  ASSERT_EQ(root.at("rules").size(), 8u);
  for (const auto& [name, one] : root.at("rules").items()) {
    const PreTokenizer by_name(split_rules(name)), by_expression(one.at("pre_tokenizer"));
    EXPECT_TRUE(by_name.byte_level()) << name;
    const auto check = [&, &rule = name](const std::string& text, const json& words) {
      const auto expected = words.get<std::vector<size_t>>();
      EXPECT_EQ(word_lengths(by_name, text), expected) << rule << ": " << json(text);
      EXPECT_EQ(word_lengths(by_expression, text), expected) << rule << ": " << json(text);
    };
    ASSERT_GT(one.at("rows").size(), 200u);
    for (size_t i = 0; i < one.at("rows").size(); ++i) {
      check(strings[one.at("rows")[i].get<size_t>()].get<std::string>(), one.at("words")[i]);
    }
    for (size_t i = 0; i < one.at("extra").size(); ++i) {
      check(root.at("extra")[i].get<std::string>(), one.at("extra")[i]);
    }
  }
}

TEST(SplitRules, KnowWhatElseAFileDoesNotSay) {
  EXPECT_TRUE(split_rules("llama-bpe").ignore_merges && split_rules("tekken").ignore_merges);
  EXPECT_TRUE(split_rules("llama3").add_bos && split_rules("tekken").add_bos);
  EXPECT_FALSE(split_rules("dbrx").ignore_merges || split_rules("qwen2").ignore_merges);
  EXPECT_FALSE(split_rules("smollm").add_bos || split_rules("gpt-2").add_bos);
  EXPECT_TRUE(split_rules("qwen2").nfc && split_rules("qwen35").nfc);
}

TEST(SplitRules, AnUnknownNameIsRefusedWithThoseThatAreKnown) {
  for (const char* name : {"", "kimi-k2", "Llama-BPE"}) {
    try {
      split_rules(name);
      FAIL() << name;
    } catch (const Error& e) {
      EXPECT_EQ(to_string(e.code()), std::string(to_string(ErrorCode::kUnsupported)));
      EXPECT_NE(std::string(e.what()).find(std::string("\"") + name + "\""), std::string::npos);
      EXPECT_NE(std::string(e.what()).find("smollm"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace pith
