#include "tools/eval/results.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "pith/error.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

class ResultsTest : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/pith_results_XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }

  static Record ledger(double bytes) {
    Ledger l;
    l.payload = static_cast<size_t>(bytes), l.tokens = 100;
    l.rows_seen = 200, l.rows_kept = 50, l.channels_seen = 6400, l.channels_kept = 1600;
    return to_record(l);
  }

  // A piece of two predictions with the given divergences.
  static std::string ppl(const std::string& policy, int piece, int seed, double kl_a, double kl_b,
                         bool null = false) {
    Record r{{"key", policy + std::to_string(piece) + std::to_string(seed) + (null ? "n" : "")},
             {"version", "1"},
             {"model", "demo"},
             {"kind", "ppl"},
             {"mode", "continue"},
             {"context", 101},
             {"piece", piece},
             {"policy", policy},
             {"resolved_policy", policy},
             {"kv_seed", seed},
             {"null_control", null},
             {"seconds", 2.0},
             {"ledger", ledger(3200)},
             {"predictions",
              {{"nll", {1.0, 3.0}},
               {"exact_nll", {1.0, 2.0}},
               {"kl", {kl_a, kl_b}},
               {"same_top", {1, 0}}}}};
    return r.dump() + "\n";
  }

  static std::string task(const std::string& policy, int sample, int seed, double score,
                          const std::string& logits = "") {
    Record r{{"key", "task" + policy + std::to_string(sample) + std::to_string(seed)},
             {"version", "1"},
             {"model", "demo"},
             {"kind", "task"},
             {"task", "facts"},
             {"length", 2048},
             {"sample", sample},
             {"text_fingerprint", std::to_string(sample)},
             {"metric", "contains_all"},
             {"policy", policy},
             {"resolved_policy", policy},
             {"kv_seed", seed},
             {"score", score},
             {"answers", {{{"score", score}}, {{"score", 1.0}}}},
             {"prompt_seconds", 1.0},
             {"answer_seconds", 0.5},
             {"ledger", ledger(1600)}};
    if (!logits.empty()) r["logits_fingerprint"] = logits;
    return r.dump() + "\n";
  }

  fs::path folder_;
};

TEST_F(ResultsTest, PiecesBecomeOneRowWithTheErrorsOfTextAndSeeds) {
  const auto path =
      file("a.jsonl", ppl("exact", 0, 0, 0, 0, true) + ppl("uniform", 0, 0, 0.1, 0.3) +
                          ppl("uniform", 1, 0, 0.2, 0.2) + ppl("uniform", 0, 1, 0.5, 0.3) +
                          ppl("uniform", 1, 1, 0.4, 0.4) + ppl("keydiff", 0, 0, 0.1, 0.1) +
                          ppl("keydiff", 1, 0, 0.1, 0.3));
  const Results results = read_results({path, path});  // the same twice counts once
  ASSERT_EQ(results.groups.size(), 1u);
  const ResultGroup& g = results.groups[0];
  EXPECT_EQ(g.name, "continue");
  EXPECT_EQ(g.length, 101u);
  EXPECT_EQ(g.setting["model"], "demo");
  EXPECT_FALSE(g.setting.contains("kv_seed"));
  EXPECT_EQ(g.null_control, 0.0);
  ASSERT_EQ(g.rows.size(), 3u) << "the null control measures the exact cache";
  EXPECT_EQ(g.rows[0].policy, "exact");
  EXPECT_EQ(g.rows[0].divergence.mean, 0);
  const ResultRow& uniform = g.rows[1];
  EXPECT_EQ(uniform.seeds, 2u);
  EXPECT_EQ(uniform.count, 4u);
  EXPECT_NEAR(uniform.divergence.mean, 0.3, 1e-6) << "of 0.2 and 0.4";
  EXPECT_NEAR(uniform.divergence.error, std::sqrt(0.02 / 12 + 0.02 / 2), 1e-6) << "text, seeds";
  EXPECT_NEAR(uniform.perplexity.mean, std::exp(2.0), 1e-5);
  EXPECT_NEAR(uniform.ln_ratio.mean, 0.5, 1e-6);
  EXPECT_NEAR(uniform.same_top.mean, 0.5, 1e-9);
  EXPECT_EQ(uniform.bytes, 3200);
  EXPECT_EQ(uniform.bits, 4.0);
  EXPECT_EQ(uniform.kept, 0.25);
  EXPECT_EQ(uniform.seconds, 2.0);
  const ResultRow& keydiff = g.rows[2];
  EXPECT_EQ(keydiff.seeds, 1u);
  EXPECT_NEAR(keydiff.divergence.mean, 0.15, 1e-6);
  EXPECT_NEAR(keydiff.divergence.error, 0.05, 1e-6) << "standard error of 0.1, 0.1, 0.1, 0.3";
  EXPECT_EQ(g.errors, "blocks");
  EXPECT_EQ(g.best, "keydiff");
  EXPECT_FALSE(keydiff.above_best.has_value());
  ASSERT_TRUE(uniform.above_best.has_value());
  EXPECT_NEAR(uniform.above_best->mean, 0.15, 1e-6);
  EXPECT_NEAR(uniform.above_best->error, std::sqrt(0.03 / 12 + 0.02 / 2), 1e-6)
      << "of 0.2, 0.2, 0.2, 0 and the seeds";
}

TEST_F(ResultsTest, ASeedThatStoppedAsEqualIsNoOther) {
  const Results results = read_results(
      {file("a.jsonl", ppl("keydiff", 0, 0, 0.1, 0.1) + ppl("keydiff", 0, 1, 0.1, 0.1) +
                           ppl("keydiff", 1, 0, 0.1, 0.3))});
  EXPECT_EQ(results.groups[0].rows[0].seeds, 1u);
  EXPECT_NEAR(results.groups[0].rows[0].divergence.mean, 0.15, 1e-6);
}

// Scores alone do not tell: two caches may both find everything.
TEST_F(ResultsTest, ATasksSeedThatLeftTheSameCacheIsNoOther) {
  const Results results = read_results(
      {file("t.jsonl", task("exact", 0, 0, 1, "a") + task("exact", 0, 1, 1, "a") +
                           task("exact", 1, 0, 0, "b") + task("uniform", 0, 0, 1, "c") +
                           task("uniform", 0, 1, 1, "d") + task("uniform", 1, 0, 1, "e") +
                           task("uniform", 1, 1, 0, "f"))});
  const auto& rows = results.groups[0].rows;
  EXPECT_EQ(rows[0].seeds, 1u);
  EXPECT_EQ(rows[0].score.mean, 0.5);
  EXPECT_EQ(rows[1].seeds, 2u);
  EXPECT_EQ(rows[1].score.mean, 0.75);
}

TEST_F(ResultsTest, SamplesOfATaskBecomeOneRow) {
  const Results results =
      read_results({file("t.jsonl", task("exact", 0, 0, 1) + task("exact", 1, 0, 0.5) +
                                        task("uniform", 0, 0, 1) + task("uniform", 0, 1, 0))});
  ASSERT_EQ(results.groups.size(), 1u) << "texts of samples differ within one setting";
  const auto& rows = results.groups[0].rows;
  EXPECT_EQ(results.groups[0].most_count(), 2u);
  EXPECT_EQ(rows[0].score.mean, 0.75);
  EXPECT_EQ(rows[0].by_turn, (std::vector<double>{0.75, 1.0}));
  EXPECT_EQ(rows[0].seconds, 1.5);
  EXPECT_EQ(rows[1].seeds, 2u);
  EXPECT_EQ(rows[1].score.mean, 0.5);
  EXPECT_NEAR(rows[1].score.error, std::sqrt(0.5), 1e-12);
  EXPECT_EQ(rows[1].score_interval.low, wilson(0.5, 1).low) << "two seeds of one sample";
}

TEST_F(ResultsTest, LinesReadBackAsTheyWere) {
  const std::string probe =
      R"({"model":"demo","text":"folder/a.txt","tokens":9,"queries":2,"seeds":3,"null_control_error":0,)"
      R"("policies":[{"policy":"x","random":true,"all":{"rows":2,"rows_seen":8,"bytes":7,)"
      R"("effective_bits":4,"error_mean":0.5,"error_deviation":0.25},)"
      R"("layers":[{"error_mean":0.25},{"error_mean":0.75}]}]})";
  const std::string costs =
      "policy,s,n,rows,bytes,effective_bits,update_seconds,update_least,update_most,"
      "attend_seconds,attend_least,attend_most,step_seconds,exact_attend_seconds,x,y\n"
      "\"a(b=1,c=2)\",1,4096,8,64,2.5,1e-06,0,0,2e-06,0,0,0,5e-06,0,0\n";
  const Results first = read_results(
      {file("a.jsonl", ppl("exact", 0, 0, 0, 0, true) + ppl("uniform", 0, 0, 0.125, 0.25)),
       file("t.jsonl", task("exact", 0, 0, 1)), file("p.json", probe), file("c.csv", costs)});
  ASSERT_EQ(first.probes.size(), 1u);
  EXPECT_EQ(first.probes[0].text, "a.txt");
  EXPECT_EQ(first.probes[0].rows[0].kept, 0.25);
  EXPECT_EQ(first.probes[0].rows[0].layers, (std::vector<double>{0.25, 0.75}));
  ASSERT_EQ(first.costs.size(), 1u);
  EXPECT_EQ(first.costs[0].policy, "a(b=1,c=2)");
  EXPECT_EQ(first.costs[0].attend, 2e-6);
  const std::string lines = results_to_lines(first);
  const Results again = read_results({file("lines.jsonl", lines)});
  EXPECT_EQ(results_to_lines(again), lines);
  EXPECT_EQ(again.groups[0].rows[1].divergence.mean, 0.1875);
  EXPECT_EQ(again.groups[0].errors, "blocks");
  EXPECT_EQ(again.costs[0].tokens, 4096u);
  const std::string alone = results_to_lines({{}, first.probes, {}});
  EXPECT_EQ(results_to_lines(read_results({file("probe.jsonl", alone)})), alone);
}

// As written before errors were of blocks: their kind is not made up, intervals follow from counts.
TEST_F(ResultsTest, LinesOfOldAreRead) {
  const std::string ppl =
      R"({"result":"ppl","name":"continue","length":9,"setting":{}})"
      "\n"
      R"({"policy":"exact","seeds":1,"count":4,"tokens":9,"bytes":1,"bits":16,"kept":1,"seconds":1,)"
      R"("perplexity":[2,0.1],"ln_ratio":[0,0],"kl":[0,0],"kl_50":0,"kl_99":0,"same_top":[1,0]})"
      "\n";
  const std::string task =
      R"({"result":"task","name":"facts","length":9,"setting":{}})"
      "\n"
      R"({"policy":"exact","seeds":1,"count":16,"tokens":9,"bytes":1,"bits":16,"kept":1,"seconds":1,)"
      R"("score":[1,0],"by_turn":[1]})"
      "\n";
  const Results results = read_results({file("old", ppl + task)});
  EXPECT_EQ(results.groups[0].errors, "");
  EXPECT_FALSE(results.groups[0].rows[0].above_best.has_value());
  EXPECT_EQ(results_to_lines(results).find("\"errors\""), std::string::npos);
  EXPECT_NEAR(results.groups[1].rows[0].score_interval.low, 0.8064, 1e-4);
}

TEST_F(ResultsTest, RefusesWhatIsNoResult) {
  const auto refused = [&](const fs::path& path, ErrorCode code, const std::string& words) {
    try {
      read_results({path});
      ADD_FAILURE() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), code) << e.what();
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  refused(folder_ / "none", ErrorCode::kNotFound, "No such file");
  refused(file("empty", ""), ErrorCode::kCorrupt, "the file is empty");
  refused(file("text", "once upon a time\n"), ErrorCode::kCorrupt, "line 1");
  refused(file("other", "{\"key\":\"a\",\"kind\":\"cake\"}\n"), ErrorCode::kCorrupt, "kind");
  refused(file("short", "{\"key\":\"a\",\"kind\":\"ppl\"}\n"), ErrorCode::kCorrupt, "mode");
  refused(file("row", "{\"policy\":\"exact\"}\n"), ErrorCode::kCorrupt, "setting");
  const std::string head = R"({"result":"ppl","name":"continue","length":9,"setting":)";
  refused(file("model", head + "{\"model\":7}}\n"), ErrorCode::kCorrupt, "line 1");
  refused(file("list", head + "[1]}\n"), ErrorCode::kCorrupt, "line 1");
  for (const char* length : {"-5", "4.5", "1e80", "\"9\""})
    refused(file("length", fmt::format(R"({{"result":"ppl","name":"a","length":{},"setting":{{}}}})"
                                       "\n",
                                       length)),
            ErrorCode::kCorrupt, "length is ");
  refused(file("piece", R"({"key":"a","kind":"ppl","mode":"m","context":9,"model":{}})"
                        "\n"),
          ErrorCode::kCorrupt, "line 1");
  refused(file("csv", "policy,s,n,\nx\n"), ErrorCode::kCorrupt, "'x'");
  // The rest of a killed run is no reason to lose other results.
  const Results half =
      read_results({file("half", task("exact", 0, 0, 1) + task("exact", 1, 0, 1).substr(0, 40))});
  EXPECT_EQ(half.groups[0].rows[0].count, 1u);
}

}  // namespace
}  // namespace pith
