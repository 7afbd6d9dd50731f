#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <string>

#include "paths.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/tokenizer.h"

namespace pith {
namespace {

std::shared_ptr<const Model> demo() { return Model::load(repo_dir() / "models/demo", false); }

GenerateOptions greedy(int64_t tokens) {
  GenerateOptions o;
  o.sampling.temperature = 0;
  o.max_tokens = tokens;
  return o;
}

class Generate : public testing::Test {
 protected:
  GenerateResult run(const GenerateOptions& o) {
    Session session(model_, {});
    shown_.clear();
    return generate(session, prompt_, o, [&](std::string_view piece) { shown_ += piece; });
  }
  std::shared_ptr<const Model> model_ = demo();
  std::vector<int32_t> prompt_ = model_->tokenizer().encode("The ship lay at anchor");
  std::string shown_;
};

TEST_F(Generate, IsTheLoopWrittenOut) {
  const auto result = run(greedy(20));
  Session session(model_, {});
  auto logits = session.prefill(prompt_);
  for (int32_t token : result.tokens) {
    EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    logits = session.decode(token);
  }
  EXPECT_EQ(result.tokens.size(), 20u);
  EXPECT_EQ(result.text, model_->tokenizer().decode(result.tokens));
  EXPECT_EQ(result.text, shown_);
  EXPECT_EQ(result.reason, StopReason::kMaxTokens);
}

TEST_F(Generate, StopStringsMayLieAcrossTokens) {
  const std::string whole = run(greedy(20)).text;
  auto o = greedy(20);
  o.stop = {whole.substr(7, 12)};
  const auto result = run(o);
  EXPECT_EQ(result.reason, StopReason::kStopString);
  EXPECT_EQ(result.text, whole.substr(0, whole.find(o.stop[0])));
  EXPECT_EQ(shown_, result.text);
}

TEST_F(Generate, EndsAtTokensThatTheCallerNames) {
  const auto whole = run(greedy(20));
  auto o = greedy(20);
  o.ends = {whole.tokens[6]};
  const auto first = std::find(whole.tokens.begin(), whole.tokens.end(), o.ends[0]);
  const auto result = run(o);
  EXPECT_EQ(result.reason, StopReason::kEndOfText);
  EXPECT_EQ(result.tokens, std::vector<int32_t>(whole.tokens.begin(), first + 1));
  EXPECT_EQ(result.text, model_->tokenizer().decode({whole.tokens.begin(), first})) << "without it";
  o.ignore_eos = true;
  const auto endless = run(o);
  EXPECT_EQ(endless.tokens.size(), 20u);
  EXPECT_EQ(std::count(endless.tokens.begin(), endless.tokens.end(), o.ends[0]), 0);
}

TEST_F(Generate, NoTokensWhenNoneAreAskedFor) {
  const auto result = run(greedy(0));
  EXPECT_TRUE(result.tokens.empty());
  EXPECT_EQ(result.reason, StopReason::kMaxTokens);
  EXPECT_EQ(result.prompt_tokens, prompt_.size());
}

TEST_F(Generate, CancelsWithoutAToken) {
  const std::atomic<bool> cancel{true};
  auto o = greedy(20);
  o.cancel = &cancel;
  const auto result = run(o);
  EXPECT_EQ(result.reason, StopReason::kCancelled);
  EXPECT_TRUE(result.tokens.empty());
}

TEST_F(Generate, EndsWhenTheContextIsFull) {
  StandaloneOptions options;
  options.context = prompt_.size() + 3;
  Session session(model_, options);
  auto o = greedy(-1);
  o.ignore_eos = true;
  const auto result = generate(session, prompt_, o);
  EXPECT_EQ(result.reason, StopReason::kContextFull);
  EXPECT_EQ(result.tokens.size(), 4u);  // the last was drawn but found no place
}

TEST_F(Generate, RefusesAnEmptyPrompt) {
  Session session(model_, {});
  EXPECT_THROW(generate(session, {}, greedy(1)), Error);
}

}  // namespace
}  // namespace pith
