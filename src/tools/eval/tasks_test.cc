// Every task keeps its promises: length, determinism, an answer that lies in the context; and the
// demo model answers those in its own format.

#include "tools/eval/tasks.h"

#include <gtest/gtest.h>

#include "paths.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "tools/eval/task_runner.h"

namespace pith {
namespace {

class Tasks : public testing::Test {
 protected:
  static void SetUpTestSuite() { model = Model::load(repo_dir() / "models/demo"); }
  static SampleRequest request(size_t tokens, uint64_t number = 0) {
    return {tokens, number, 7, 3,
            [](const std::string& text) { return model->tokenizer().encode(text).size(); }};
  }
  static SampleResult run(const Sample& sample, const std::string& policy, bool aware = false) {
    StandaloneOptions o;
    o.policy = Policy::parse(policy), o.threads = 1;
    return run_sample(model, o, sample, aware);
  }
  static std::shared_ptr<const Model> model;
};
std::shared_ptr<const Model> Tasks::model;

TEST_F(Tasks, FitTheLengthAndHoldTheirAnswers) {
  for (const TaskInfo& t : tasks()) {
    const auto r = request(3000);
    const Sample s = make_sample(t.name, r);
    size_t longest = 0, all = 0;
    for (const Turn& turn : s.turns) {
      const size_t tokens = r.count_tokens(turn.question) + s.max_tokens;
      longest = std::max(longest, tokens), all += tokens;
      for (const std::string& reference : turn.references)
        EXPECT_NE(s.context.find(reference), std::string::npos) << t.name << ": " << reference;
    }
    const size_t tokens = r.count_tokens(s.context) + (s.conversation ? all : longest) + 1;
    EXPECT_LE(tokens, 3000u) << t.name;
    EXPECT_GT(tokens, 2800u) << t.name;
    EXPECT_EQ(make_sample(t.name, r).context, s.context) << t.name;
    EXPECT_NE(make_sample(t.name, request(3000, 1)).context, s.context) << t.name;
  }
  EXPECT_THROW(make_sample("niah", request(3000)), Error);
  EXPECT_THROW(make_sample("cwe", request(100)), Error);
}

TEST_F(Tasks, RulersTextsAreItsOwn) {
  const Sample niah = make_sample("niah_single_1", request(600));
  EXPECT_TRUE(niah.context.starts_with(
      "A special magic number is hidden within the following text. Make sure to memorize it. I "
      "will quiz you about the number afterwards.\n"));
  EXPECT_EQ(niah.turns[0].references[0].size(), 7u);
  const Sample vt = make_sample("vt", request(1000));
  EXPECT_EQ(vt.turns[0].references.size(), 5u);
  EXPECT_NE(vt.context.find("VAR " + vt.turns[0].references[1] + " = VAR " +
                            vt.turns[0].references[0] + " "),
            std::string::npos);
  EXPECT_EQ(make_sample("cwe", request(3000)).turns[0].references.size(), 10u);
  EXPECT_EQ(make_sample("fwe", request(1500)).turns[0].references.size(), 3u);
}

TEST_F(Tasks, TheDemoModelAnswersItsOwnFormats) {
  for (const char* task : {"facts", "multi_turn", "docqa", "kv"})
    EXPECT_GE(run(make_sample(task, request(1100)), "exact").score(), 0.6) << task;
}

TEST_F(Tasks, CompressionAndQuestionsMatter) {
  const Sample facts = make_sample("facts", request(700));
  const SampleResult narrow = run(facts, "local(window=64)");
  EXPECT_LT(narrow.score(), 0.5);
  EXPECT_EQ(narrow.ledger.rows_kept, 64u * 8 * 2);
  EXPECT_EQ(narrow.turns.size(), 3u);
  const SampleResult aware = run(facts, "exact", /*aware=*/true);
  EXPECT_GE(aware.score(), 0.6);
}

}  // namespace
}  // namespace pith
