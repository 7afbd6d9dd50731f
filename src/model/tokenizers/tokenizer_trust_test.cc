// encode_within(): special tokens count where the text is trusted, and nowhere else.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "model/tokenizers/tokenizer_vocab.h"
#include "paths.h"
#include "pith/error.h"
#include "pith/tokenizer.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

/// Every tokenizer of the golden data.
std::vector<fs::path> folders() {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(repo_dir() / "tests" / "data" / "tokenizers")) {
    const fs::path& path = entry.path();
    if (fs::exists(path / "tokenizer.json") || fs::exists(path / "tokenizer.model"))
      out.push_back(path);
  }
  return out;
}

/// A special token of the tokenizer that can be spelled, or -1.
int32_t some_special(const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string spelled = tokenizer.piece(id);
    const auto ids = tokenizer.encode(spelled);
    if (tokenizer.is_special(id) && spelled.size() > 2 && std::ranges::count(ids, id) == 1)
      return id;
  }
  return -1;
}

TEST(TokenizerTrust, AllAndNothingAreWhatEncodeDoes) {
  for (const fs::path& folder : folders()) {
    const auto tokenizer = load_tokenizer(folder);
    const int32_t special = some_special(*tokenizer);
    const std::string mark = special < 0 ? "<s>" : tokenizer->piece(special);
    const std::string text = mark + "One two" + mark + " 345, sechs\n";
    const TextSpan all{0, text.size()};
    EXPECT_EQ(encode_within(*tokenizer, text, {&all, 1}), tokenizer->encode(text, true)) << folder;
    EXPECT_EQ(encode_within(*tokenizer, text, {}), tokenizer->encode(text, false)) << folder;
  }
}

TEST(TokenizerTrust, OnlyTrustedTokensCount) {
  int checked = 0;
  for (const fs::path& folder : folders()) {
    const auto tokenizer = load_tokenizer(folder);
    const int32_t special = some_special(*tokenizer);
    if (special < 0) continue;
    const std::string mark = tokenizer->piece(special);
    const std::string text = mark + "user: " + mark + " ends" + mark;
    const size_t last = text.size() - mark.size();
    const auto count = [&](const std::vector<TextSpan>& spans) {
      return std::ranges::count(encode_within(*tokenizer, text, spans), special);
    };
    EXPECT_EQ(count({{0, mark.size()}, {last, text.size()}}), 2) << folder;
    EXPECT_EQ(count({{0, mark.size()}}), 1) << folder;
    EXPECT_EQ(count({{1, text.size()}}), 2) << folder << ": the first is cut";
    EXPECT_EQ(count({{last, text.size() - 1}}), 0) << folder << ": the last is cut";
    ++checked;
  }
  EXPECT_GT(checked, 3);
}

// A border between trusted and other text is no border of tokens.
TEST(TokenizerTrust, SpansChangeNothingWithoutSpecialTokens) {
  std::mt19937 dice(11);
  const std::string text = "The captain's 1234 ships \xC3\xA9\xC3\xA9  sailed\n\n on, unseen.";
  for (const fs::path& folder : folders()) {
    const auto tokenizer = load_tokenizer(folder);
    const auto expected = tokenizer->encode(text, false);
    for (int round = 0; round < 20; ++round) {
      size_t a = dice() % text.size(), b = dice() % text.size();
      if (a > b) std::swap(a, b);
      const TextSpan spans[] = {{a, b}, {b, text.size()}};
      EXPECT_EQ(encode_within(*tokenizer, text, spans), expected) << folder << a << " " << b;
    }
  }
}

TEST(TokenizerTrust, InvalidTextIsTrustedWholeOrNotAtAll) {
  const auto tokenizer = load_tokenizer(folders().front());
  const TextSpan part{0, 1}, all{0, SIZE_MAX};
  EXPECT_NO_THROW(encode_within(*tokenizer, "a\xFFz", {&all, 1}));
  EXPECT_THROW(encode_within(*tokenizer, "a\xFFz", {&part, 1}), Error);
}

}  // namespace
}  // namespace pith
