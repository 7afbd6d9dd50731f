// The demo model's perplexity on the repository's LICENSE against transformers
// (tools/golden/make_perplexity.py), and what the three protocols promise.

#include "eval/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "paths.h"
#include "pith/error.h"
#include "pith/tokenizer.h"

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
  const PredictionSummary s = summarise(all);
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
