// pith probe and pith bench select as a person runs them.

#include <nlohmann/json.hpp>

#include "cli_harness.h"

namespace pith {
namespace {

using nlohmann::json;
using test::Cli;
using test::kModel;
using test::read;
using test::Result;
using test::words;

std::vector<std::string> probe(std::vector<std::string> more) {
  more.insert(more.begin(), {"probe", "-m", kModel, "-p", words(400), "--queries", "64"});
  return more;
}

TEST_F(Cli, ProbeSetsPoliciesBesideUniform) {
  const std::string csv = folder_ / "errors.csv";
  const std::vector<std::string> arguments =
      probe({"-c", "500", "--kv-policy", "exact", "--kv-policy", "uniform(budget=60)",
             "--kv-policy", "keydiff(budget=60)", "--csv", csv, "--json"});
  const Result r = run(arguments);
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["null_control_error"], 0.0);
  EXPECT_EQ(j["tokens"], 500);
  ASSERT_EQ(j["policies"].size(), 3u);
  const json &exact = j["policies"][0], &uniform = j["policies"][1], &keydiff = j["policies"][2];
  EXPECT_LT(exact["all"]["error_mean"].get<double>(), 1e-3);
  EXPECT_FALSE(exact["all"].contains("uniform_mean"));
  EXPECT_EQ(exact["all"]["effective_bits"], 16.0);
  EXPECT_TRUE(uniform["random"]);
  EXPECT_EQ(uniform["all"]["ratio"], 1.0) << "uniform beside itself";
  EXPECT_GT(uniform["all"]["error_deviation"].get<double>(), 0);
  EXPECT_FALSE(keydiff["random"]);
  EXPECT_EQ(keydiff["all"]["error_deviation"], 0.0);
  ASSERT_EQ(keydiff["layers"].size(), 8u);
  const json& head = keydiff["layers"][3]["heads"][1];
  EXPECT_EQ(head["rows"], 124.0) << "4 of the sink, 56 of at most 60, 64 of the window";
  EXPECT_EQ(head["uniform_errors"].size(), 3u);
  EXPECT_GT(head["error_mean"].get<double>(), 0.001);

  const std::string table = read(csv);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 1 + 3 * 8 * 2);
  EXPECT_NE(table.find("\"keydiff(budget=60)\",500,64,3,3,1,124,"), std::string::npos) << table;
  const json again = json::parse(run(arguments).out);
  EXPECT_EQ(again["policies"], j["policies"]) << "the same command gives the same numbers";
}

TEST_F(Cli, ProbePrintsTables) {
  const Result r =
      run(probe({"--kv-policy", "snapkv", "--kv-budget", "50", "--seeds", "1", "--per-head"}));
  ASSERT_EQ(r.status, 0) << r.err;
  for (const char* expected : {"null control (exact f32 rows against themselves): 0",
                               "snapkv(budget=50)", "  head 1", "policy, all layers", "/16"})
    EXPECT_NE(r.out.find(expected), std::string::npos) << expected << r.out;
}

TEST_F(Cli, ProbeRefusesWithAReason) {
  refused(probe({}), 10, "no policy to probe");
  refused(probe({"--kv-policy", "exakt"}), 10, "did you mean 'exact'?");
  refused(probe({"--kv-policy", "uniform(rate=0)"}), 10, "a number from");
  refused(probe({"--kv-policy", "exact", "-c", "5000"}), 10, "-c asks for 5000");
  refused(probe({"--kv-policy", "exact", "-c", "64"}), 10, "fewer queries");
  refused(probe({"--kv-policy", "exact", "--seeds", "0"}), 2, "--seeds");
  refused(probe({"--kv-policy", "exact", "--csv", "/nowhere/x.csv", "--seeds", "1"}), 17,
          "/nowhere");
  refused({"probe", "-m", kModel, "--kv-policy", "exact", "-f", "/nowhere.txt"}, 11, "nowhere");
  refused({"probe", "--kv-policy", "exact", "-p", "x"}, 2, "--model");
}

TEST_F(Cli, BenchSelectTimesSelectorsBesideExact) {
  const std::string csv = folder_ / "times.csv";
  const Result r = run({"bench", "select", "--n", "512..3000", "--s", "64,128", "-r", "1", "-d",
                        "32", "--kv-policy", "local(window={s})", "--kv-policy",
                        "knorm(budget=100)", "--csv", csv, "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_LT(j["exact_error"].get<double>(), 1e-2);
  EXPECT_GT(j["read_bytes_per_second"].get<double>(), 1e8);  // sanitised, on a busy machine: 7e8
  ASSERT_EQ(j["lines"].size(), 3u * 4);
  const size_t lengths[] = {512, 2048, 3000};
  for (size_t i = 0; i < 12; ++i) {
    const json& line = j["lines"][i];
    EXPECT_EQ(line["n"], lengths[i / 4]);
    EXPECT_EQ(line["ledger"]["tokens"], line["n"]);
    EXPECT_GT(line["update_seconds"]["median"].get<double>(), 0);
    EXPECT_GE(line["attend_seconds"]["most"], line["attend_seconds"]["median"]);
    EXPECT_GT(line["step_seconds"]["median"].get<double>(), 0);
  }
  EXPECT_EQ(j["lines"][0]["policy"], "exact");
  EXPECT_EQ(j["lines"][8]["ledger"]["rows_kept"], 3000);
  EXPECT_EQ(j["lines"][9]["policy"], "local(window=64)");
  EXPECT_EQ(j["lines"][10]["ledger"]["rows_kept"], 128);
  EXPECT_EQ(j["lines"][11]["s"], 0) << "no {s} in knorm(budget=100)";
  const std::string table = read(csv);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 13);
}

TEST_F(Cli, BenchSelectKnowsEverySelectorWithASize) {
  const Result r = run({"bench", "select", "--n", "100", "--s", "64", "-r", "1"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("of read"), std::string::npos);
  for (const char* name : {"express(s=64)", "balancekv(budget=64)", "buzz(T=64)", "h2o(budget=64)",
                           "streaming_llm(window=64)"})
    EXPECT_NE(r.out.find(name), std::string::npos) << name << r.out;
}

TEST_F(Cli, BenchSelectRefusesWithAReason) {
  refused({"bench", "select", "--n", "many"}, 10, "'many' is no length");
  refused({"bench", "select", "--n", "100,,200"}, 10, "'' is no length");
  refused({"bench", "select", "--n", "0..100"}, 10, "'0' is no length");
  refused({"bench", "select", "--s", "0"}, 2, "--s");
  refused({"bench", "select", "-d", "40", "--n", "10"}, 13, "multiples of 16");
  refused({"bench", "select", "--kv-policy", "expres(s={s})"}, 10, "did you mean 'express'?");
  refused({"bench", "select", "--csv", "/nowhere/x.csv"}, 17, "/nowhere");
  refused({"bench"}, 2, "--model");
  const Result r = run({"completion", "bash"});
  EXPECT_NE(r.out.find("bench-select) words="), std::string::npos);
}

}  // namespace
}  // namespace pith
