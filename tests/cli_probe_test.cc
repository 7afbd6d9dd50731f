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

// Text with some variety, about 1.3 tokens a word.
std::string words(int count) {
  const char* const kWords[] = {"the ship", "lay at",  "anchor and", "a man",
                                "stood on", "the old", "quay while", "rain fell"};
  std::string text;
  for (int i = 0; i < count; ++i) text += std::string(kWords[(i * i + i / 7) % 8]) + " ";
  return text;
}

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
  EXPECT_EQ(head["rows"], 128.0) << "4 of the sink, 60, 64 of the window";
  EXPECT_EQ(head["uniform_errors"].size(), 3u);
  EXPECT_GT(head["error_mean"].get<double>(), 0.001);

  const std::string table = read(csv);
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 1 + 3 * 8 * 2);
  EXPECT_NE(table.find("\"keydiff(budget=60)\",500,64,3,3,1,128,"), std::string::npos) << table;
  const json again = json::parse(run(arguments).out);
  EXPECT_EQ(again["policies"], j["policies"]) << "the same command gives the same numbers";
}

TEST_F(Cli, ProbePrintsTables) {
  const Result r = run(probe({"--kv-policy", "snapkv", "--kv-budget", "50", "--seeds", "1",
                              "--per-head"}));
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

}  // namespace
}  // namespace pith
