// The demo model's perplexity on the repository's LICENSE against transformers
// (tools/golden/make_perplexity.py), and what the three protocols promise.

#include "tools/eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "tools/eval/answers.h"

namespace pith {
namespace {

const std::string kRepo = repo_dir().string();

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class PerplexityTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    model = Model::load(kRepo + "/models/demo");
    ids = model->tokenizer().encode(read(kRepo + "/LICENSE"));
    ids.insert(ids.begin(), model->tokenizer().bos());
  }
  static PerplexityOptions options(PerplexityMode mode, size_t window) {
    PerplexityOptions o;
    o.mode = mode, o.window = window, o.bos = model->tokenizer().bos();
    o.session.f32_arithmetic = true, o.session.threads = 1;
    return o;
  }
  static std::vector<PieceResult> run(const PerplexityOptions& o,
                                      const std::vector<std::string>& policies, size_t piece = 0) {
    Perplexity perplexity(model, ids, o);
    std::vector<PerplexityRun> runs;
    for (const auto& p : policies) runs.push_back({Policy::parse(p), 1});
    return perplexity.run(piece, runs, [](size_t) { return true; });
  }
  static std::shared_ptr<const Model> model;
  static std::vector<int32_t> ids;
};
std::shared_ptr<const Model> PerplexityTest::model;
std::vector<int32_t> PerplexityTest::ids;

TEST_F(PerplexityTest, AgreesWithTransformers) {
  const auto golden = nlohmann::json::parse(read(kRepo + "/tests/data/eval/perplexity.json"));
  ASSERT_EQ(ids.size(), golden["tokens"]);
  auto o = options(PerplexityMode::kChunks, golden["window"]);
  o.pieces = 3;
  Perplexity perplexity(model, ids, o);
  std::vector<Prediction> all;
  const std::vector<PerplexityRun> exact{{Policy::parse("exact"), 0}};
  for (size_t i = 0; i < perplexity.pieces(); ++i) {
    const auto r = perplexity.run(i, exact, [](size_t) { return true; });
    all.insert(all.end(), r[0].predictions.begin(), r[0].predictions.end());
  }
  // The golden error has tokens as the draws.
  const PredictionSummary s = summarise(all, std::vector<size_t>(all.size(), 1));
  EXPECT_EQ(s.count, golden["count"]);
  EXPECT_NEAR(s.perplexity.mean / golden["chunks"].get<double>(), 1, 1e-3);
  EXPECT_NEAR(s.perplexity.error / golden["chunks_error"].get<double>(), 1, 1e-2);
  EXPECT_LT(s.divergence.mean, 1e-6) << "the null control";
}

TEST_F(PerplexityTest, DecodeCountsEveryPredictionAndAgreesToo) {
  const auto golden = nlohmann::json::parse(read(kRepo + "/tests/data/eval/perplexity.json"));
  const auto results = run(options(PerplexityMode::kDecode, 256), {"exact"});
  const PredictionSummary s = summarise(results[0].predictions);
  EXPECT_EQ(s.count, 255u);
  EXPECT_NEAR(s.perplexity.mean / golden["decode_256"].get<double>(), 1, 1e-3);
  EXPECT_LT(s.divergence.mean, 1e-6);
}

TEST_F(PerplexityTest, ContinueScoresTheEndUnderACompressedCache) {
  auto o = options(PerplexityMode::kContinue, 400);
  o.score = 40;
  const auto results = run(o, {"exact", "local(window=32)", "local(window=128)"}, 1);
  ASSERT_EQ(results.size(), 3u);
  for (const PieceResult& r : results) EXPECT_EQ(r.predictions.size(), 40u);
  const double null = summarise(results[0].predictions).divergence.mean;
  const double narrow = summarise(results[1].predictions).divergence.mean;
  const double wide = summarise(results[2].predictions).divergence.mean;
  EXPECT_LT(null, 1e-6);
  EXPECT_GT(wide, 1e-3);
  EXPECT_GT(narrow, wide);
  EXPECT_EQ(results[1].ledger.rows_kept, 32u * 8 * 2);
  // The same targets as in one piece read at once.
  auto chunks = options(PerplexityMode::kChunks, 400);
  chunks.score = 40;
  const auto once = run(chunks, {"exact"}, 1);
  for (size_t i = 0; i < 40; ++i)
    EXPECT_NEAR(once[0].predictions[i].nll, results[0].predictions[i].nll, 2e-2) << i;
}

// A passage that says what `continue` does scores what it scores; questions are read, not scored.
TEST_F(PerplexityTest, PassagesSayWhereTheirPromptEnds) {
  auto o = options(PerplexityMode::kContinue, 200);
  o.score = 20;
  const auto text = run(o, {"exact", "local(window=64)"}, 1);
  Passage passage{{ids.begin() + 200, ids.begin() + 400}, 180, 180};
  passage.tokens[0] = o.bos;
  Passage later = passage;
  later.scored_from = 190;
  Perplexity perplexity(model, std::vector<Passage>{passage, later}, o.session);
  ASSERT_EQ(perplexity.pieces(), 2u);
  EXPECT_EQ(perplexity.steps(1), 199u);
  const std::vector<PerplexityRun> runs{{Policy::parse("exact"), 1},
                                        {Policy::parse("local(window=64)"), 1}};
  const auto same = perplexity.run(0, runs, [](size_t) { return true; });
  const auto end = perplexity.run(1, runs, [](size_t) { return true; });
  ASSERT_EQ(same.size(), 2u);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(same[r].predictions, text[r].predictions);
    ASSERT_EQ(end[r].predictions.size(), 10u);
    for (size_t i = 0; i < 10; ++i) EXPECT_EQ(end[r].predictions[i], text[r].predictions[i + 10]);
  }
  const auto refuse = [&](const Passage& p) {
    EXPECT_THROW(Perplexity(model, std::vector<Passage>{p}, o.session), Error);
  };
  refuse({passage.tokens, 0, 180}), refuse({passage.tokens, 180, 179});
  refuse({passage.tokens, 180, 200});
}

TEST_F(PerplexityTest, AnAnswerIsScoredAfterItsQuestion) {
  const Tokenizer& tokenizer = model->tokenizer();
  const auto text_of = [&](const Passage& p, size_t from, size_t to) {
    return tokenizer.decode({p.tokens.data() + from, to - from});
  };
  for (const char* task : {"passkey", "vt", "niah_single_1", "docqa", "kv"}) {
    SampleRequest request{.tokens = 1500, .number = 1, .seed = 7, .turns = 1};
    request.count_tokens = [&](const std::string& s) { return tokenizer.encode(s).size(); };
    const Sample sample = make_sample(task, request);
    const Passage p = answer_passage(sample, tokenizer);
    const Turn& turn = sample.turns[0];
    EXPECT_LE(p.tokens.size(), 1500u) << task;
    EXPECT_NE(text_of(p, 0, p.prompt).find(sample.context), std::string::npos) << task;
    EXPECT_EQ(text_of(p, p.prompt, p.scored_from), turn.question) << task;
    const std::string answer = text_of(p, p.scored_from, p.tokens.size());
    EXPECT_EQ(score_answer(sample.metric, answer, turn.references, turn.classes), 1) << answer;
    EXPECT_TRUE(answer.starts_with(' ') != turn.question.ends_with(' ')) << task;
  }
}

TEST_F(PerplexityTest, CancelsAndRefuses) {
  Perplexity perplexity(model, ids, options(PerplexityMode::kContinue, 64));
  const std::vector<PerplexityRun> exact{{Policy::parse("exact"), 0}};
  EXPECT_TRUE(perplexity.run(0, exact, [](size_t) { return false; }).empty());
  EXPECT_THROW(Perplexity(model, ids, options(PerplexityMode::kChunks, 4000)), Error);
  EXPECT_THROW(Perplexity(model, {}, options(PerplexityMode::kDecode, 0)), Error);
  auto o = options(PerplexityMode::kContinue, 64);
  o.score = 63;
  EXPECT_THROW(Perplexity(model, ids, o), Error);
  EXPECT_THROW(parse_perplexity_mode("chunk"), Error);
}

}  // namespace
}  // namespace pith
