// Vocabularies that lack tokens: bytes without one, and ids between that no token has. Ids as the
// tokenizers package gives them: tests/data/tokenizer_gaps.json, made by
// tools/golden/make_splits.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "model/test_files.h"
#include "paths.h"
#include "pith/tokenizer.h"

namespace pith {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

const fs::path kTests = repo_dir() / "tests" / "data";

json read(const fs::path& file) {
  std::ifstream stream(file);
  return json::parse(stream);
}

std::unique_ptr<Tokenizer> load(const json& root) {
  const testing_files::TemporaryFolder folder;
  testing_files::write_file(folder.path() / "tokenizer.json", root.dump());
  return load_tokenizer(folder.path());
}

bool names_one(const json& merge, const json& removed) {
  std::vector<std::string> parts;
  if (merge.is_array()) {
    parts = merge.get<std::vector<std::string>>();
  } else {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ');
    parts = {text.substr(0, space), text.substr(space + 1)};
  }
  parts.push_back(parts[0] + parts[1]);
  return std::any_of(parts.begin(), parts.end(), [&](const std::string& part) {
    return std::find(removed.begin(), removed.end(), json(part)) != removed.end();
  });
}

/// The base tokenizer without the case's tokens and with its options.
json with_gaps(const json& one) {
  json root = read(kTests / "tokenizers" / one.at("base").get<std::string>() / "tokenizer.json");
  json& model = root["model"];
  for (const json& token : one.at("remove")) model["vocab"].erase(token.get<std::string>());
  json kept = json::array();
  for (const json& merge : model["merges"]) {
    if (!names_one(merge, one.at("remove"))) kept.push_back(merge);
  }
  model["merges"] = kept;
  model.update(one.at("set"));
  return root;
}

TEST(TokenizerGaps, GiveTheReferencesIds) {
  const json cases = read(kTests / "tokenizer_gaps.json");
  const json strings = read(kTests / "tokenizers" / "strings.json").at("text");
  ASSERT_EQ(cases.size(), 6u);
  for (const auto& [name, one] : cases.items()) {
    const auto tokenizer = load(with_gaps(one));
    ASSERT_GT(one.at("rows").size(), 200u);
    for (size_t i = 0; i < one.at("rows").size(); ++i) {
      const auto text = strings[one.at("rows")[i].get<size_t>()].get<std::string>();
      ASSERT_EQ(tokenizer->encode(text), one.at("ids")[i].get<std::vector<int32_t>>())
          << name << ": " << json(text);
    }
  }
}

TEST(TokenizerGaps, AnIdWithoutATokenStandsForNothing) {
  json root = read(kTests / "tokenizers" / "gpt2" / "tokenizer.json");
  const auto before = load(root);
  const auto far = before->vocab_size() + 1000;
  root["added_tokens"].push_back({{"id", far}, {"content", "<|far|>"}, {"special", true}});
  const auto tokenizer = load(root);
  EXPECT_EQ(tokenizer->vocab_size(), far + 1);
  EXPECT_EQ(tokenizer->find("<|far|>"), far);
  const auto ids = tokenizer->encode("a<|far|>b");
  ASSERT_EQ(ids.size(), 3u);
  EXPECT_EQ(ids[1], far);
  EXPECT_EQ(tokenizer->piece(far - 1), "");
  EXPECT_EQ(tokenizer->decode(std::vector<int32_t>{ids[0], far - 1, ids[2]}), "ab");
  EXPECT_FALSE(tokenizer->is_special(far - 1));
}

}  // namespace
}  // namespace pith
