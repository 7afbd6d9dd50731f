// pith eval as a person runs it, and pith logits, which must agree with it.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "cli_harness.h"
#include "paths.h"

namespace pith {
namespace {

using nlohmann::json;
using test::Cli;
using test::kModel;
using test::read;
using test::Result;
using test::write;

TEST_F(Cli, EvalPplGoesOnFromItsFile) {
  const std::vector<std::string> command{"eval",
                                         "ppl",
                                         "-m",
                                         kModel,
                                         "-f",
                                         repo_dir().string() + "/LICENSE",
                                         "--mode",
                                         "continue",
                                         "-c",
                                         "200",
                                         "--score",
                                         "20",
                                         "--pieces",
                                         "2",
                                         "--kv-policy",
                                         "local(window=32)",
                                         "--kv-policy",
                                         "uniform(budget=32),sink=4,window=16",
                                         "--json",
                                         "-t",
                                         "1",
                                         "-o",
                                         (folder_ / "r.jsonl").string()};
  const Result first = run(command);
  ASSERT_EQ(first.status, 0) << first.err;
  const json j = json::parse(first.out);
  EXPECT_LT(j["null_control_kl"].get<double>(), 1e-6);
  ASSERT_EQ(j["policies"].size(), 3u);
  EXPECT_EQ(j["policies"][1]["seeds"].size(), 1u) << "local is not randomised";
  EXPECT_EQ(j["policies"][2]["seeds"].size(), 3u);
  EXPECT_GT(j["policies"][1]["seeds"][0]["summary"]["kl"]["mean"].get<double>(), 1e-3);
  EXPECT_EQ(j["policies"][1]["seeds"][0]["ledger"]["rows_kept"], 32 * 16);
  const std::string lines = read(folder_ / "r.jsonl");
  // Cut in the middle of a line, as by a kill: the rest is computed again, to the same result.
  write(folder_ / "r.jsonl", lines.substr(0, lines.size() / 2));
  const json again = json::parse(run(command).out);
  EXPECT_EQ(again["policies"][2]["seeds"][1]["summary"], j["policies"][2]["seeds"][1]["summary"]);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 5 + 5) << "equal seeds leave no line";
}

TEST_F(Cli, EvalTasksScoresAndRefuses) {
  const Result r = run({"eval", "tasks", "-m", kModel, "--task", "facts", "-c", "600", "--turns",
                        "2", "--samples", "1", "--seeds", "1", "--kv-policy", "exact",
                        "--kv-policy", "local(window=48)", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_GE(j["results"][0]["score"].get<double>(), 0.5);
  EXPECT_EQ(j["results"][1]["ledger"]["rows_kept"], 48 * 16);
  EXPECT_EQ(j["results"][1]["by_turn"].size(), 2u);
  refused({"eval", "tasks", "-m", kModel, "--task", "needle"}, 10, "niah_single_1");
  write(folder_ / "f", R"({"input":"One two three.\nWho?","outputs":["x"]})");
  const Result file = run({"eval", "tasks", "-m", kModel, "--file", folder_ / "f", "--json"});
  EXPECT_EQ(file.status, 0) << file.err;
  EXPECT_EQ(json::parse(file.out)["results"][0]["task"], "ruler");
  // Two problems of MATH in one pass, in a chat template that the demo model lacks and without.
  write(folder_ / "m", R"({"problem":"1+1?","answer":"2"}
{"problem":"2+2?","answer":"4"})");
  std::vector<std::string> math{"eval",   "tasks",         "-m",       kModel,
                                "--file", folder_ / "m",   "--format", "math500",
                                "--json", "--parallel",    "2",        "--answer-tokens",
                                "3",      "--query-aware", "-o",       folder_ / "m.jsonl"};
  const Result two = run(math);
  ASSERT_EQ(two.status, 0) << two.err;
  EXPECT_EQ(json::parse(two.out)["results"][0]["samples"], 2);
  EXPECT_EQ(json::parse(two.out)["answer_tokens"], 3);
  const json line =
      json::parse(read(folder_ / "m.jsonl").substr(0, read(folder_ / "m.jsonl").find('\n')));
  EXPECT_EQ(line["answers"][0]["tokens"], 3);
  math.emplace_back("--chat");
  refused(math, 11, "chat template");
  refused({"eval", "ppl", "-m", kModel, "-p", "too short"}, 10, "tokens");
  refused({"eval"}, 2, "subcommand");
}

// The first sample's second seed tells: then exact answers no sample twice, and a sample by chance
// each of them with every seed.
TEST_F(Cli, EvalTasksReadsDocumentsOnceWhereNothingIsRandom) {
  const std::vector<std::string> command{"eval",        "tasks",
                                         "-m",          kModel,
                                         "--task",      "facts",
                                         "-c",          "300",
                                         "--turns",     "1",
                                         "--samples",   "3",
                                         "--seeds",     "3",
                                         "--kv-policy", "exact",
                                         "--kv-policy", "uniform(rate=0.5),window=16",
                                         "-o",          folder_ / "t.jsonl",
                                         "--json"};
  for (int again = 0; again < 2; ++again) {
    const Result r = run(command);
    ASSERT_EQ(r.status, 0) << r.err;
    const json j = json::parse(r.out);
    EXPECT_EQ(j["results"][0]["seeds"], 1);
    EXPECT_EQ(j["results"][0]["samples"], 3);
    EXPECT_EQ(j["results"][1]["seeds"], 3);
    EXPECT_EQ(j["results"][1]["samples"], 3);
    const std::string lines = read(folder_ / "t.jsonl");
    EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3 + 9);
  }
}

// The logits' perplexity in double, over what llama.cpp scores of a piece: tokens 33 to 63.
TEST_F(Cli, LogitsHaveThePerplexityThatEvalReports) {
  const std::string text = repo_dir().string() + "/LICENSE", out = folder_ / "l.safetensors";
  const Result eval =
      run({"eval", "ppl", "-m", kModel, "-f", text, "-c", "64", "--pieces", "1", "--json"});
  ASSERT_EQ(eval.status, 0) << eval.err;
  const double reported =
      json::parse(eval.out)["policies"][0]["seeds"][0]["summary"]["perplexity"]["mean"];
  const json ids = json::parse(run({"tokenize", "-m", kModel, "-f", text, "--json"}).out)["ids"];
  std::string list;
  for (int i = 0; i < 64; ++i) list += (i > 0 ? "," : "") + std::to_string(ids[i].get<int>());
  ASSERT_EQ(run({"logits", "-m", kModel, "--ids", list, "--out", out}).status, 0);
  const std::string file = read(out);
  constexpr size_t vocab = 8192;
  ASSERT_GT(file.size(), 64 * vocab * 4);
  double nll = 0;
  for (size_t t = 32; t < 63; ++t) {
    std::vector<float> row(vocab);
    std::memcpy(row.data(), file.data() + file.size() - (64 - t) * vocab * 4, vocab * 4);
    double sum = 0;
    for (const float x : row) sum += std::exp(double{x});
    nll += std::log(sum) - row[ids[t + 1].get<size_t>()];
  }
  EXPECT_NEAR(std::exp(nll / 31) / reported, 1, 1e-5);
}

}  // namespace
}  // namespace pith
