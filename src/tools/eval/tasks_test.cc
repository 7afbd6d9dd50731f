// Every task keeps its promises: length, determinism, an answer that lies in the context; and the
// demo model answers those in its own format.

#include "tools/eval/tasks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
    return run_sample(model, o, sample, {.query_aware = aware});
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

// Passes of three at a time, in which a sample ends and the next begins: each answer, ledger and
// cache is what it is alone, with forks, in a conversation and query-aware.
TEST_F(Tasks, SamplesThatShareAPassAreAnsweredAsAlone) {
  const std::vector<Sample> samples{
      make_sample("facts", request(400)), make_sample("multi_turn", request(400)),
      make_sample("kv", request(400)), make_sample("facts", request(500, 1))};
  for (const bool aware : {false, true}) {
    const char* policy = "snapkv(budget=50%),window=32";
    SessionOptions o;
    o.policy = Policy::parse(policy);
    size_t finished = 0;
    const auto compare = [&](size_t i, const SampleResult& together) {
      const SampleResult alone = run(samples[i], policy, aware);
      EXPECT_EQ(together.logits, alone.logits) << i;
      EXPECT_EQ(together.policy, alone.policy);
      EXPECT_EQ(together.ledger.cache_bytes(), alone.ledger.cache_bytes());
      EXPECT_EQ(together.turns.size(), samples[i].turns.size());
      for (size_t t = 0; t < together.turns.size(); ++t) {
        EXPECT_EQ(together.turns[t].answer, alone.turns[t].answer);
        EXPECT_EQ(together.turns[t].tokens, alone.turns[t].tokens);
      }
      return ++finished > 0;
    };
    run_samples(std::make_shared<Engine>(model, EngineOptions{.threads = 2, .parallel = 3}), o,
                {.count = samples.size(),
                 .at_once = 3,
                 .sample = [&](size_t i) { return samples[i]; },
                 .finished = compare},
                {.query_aware = aware});
    EXPECT_EQ(finished, samples.size());
  }
}

TEST_F(Tasks, ARunOfManySamplesEndsWhenItIsTold) {
  size_t finished = 0;
  run_samples(std::make_shared<Engine>(model), {},
              {.count = 9,
               .at_once = 2,
               .sample = [](size_t i) { return make_sample("kv", request(400, i)); },
               .finished = [&](size_t, const SampleResult&) { return ++finished < 2; }});
  EXPECT_LE(finished, 3u);
}

TEST_F(Tasks, AQuestionInAChatTemplateIsAUsersMessage) {
  const auto chat = ChatTemplate::built_in("chatml", model->tokenizer());
  const Sample sample = make_sample("kv", request(400));
  StandaloneOptions o;
  const SampleResult plain = run_sample(model, o, sample, {.query_aware = true});
  const SampleResult asked = run_sample(model, o, sample, {.query_aware = true, .chat = &chat});
  const auto ids = chat.encode(
      model->tokenizer(),
      {.messages = nlohmann::json::array(
                       {{{"role", "user"}, {"content", sample.context + sample.turns[0].question}}})
                       .dump()});
  EXPECT_EQ(asked.ledger.tokens, ids.size() + asked.turns[0].tokens - 1);
  EXPECT_NE(asked.logits, plain.logits);
  EXPECT_THROW(run_sample(model, o, sample, {.chat = &chat}), Error);
}

}  // namespace
}  // namespace pith
