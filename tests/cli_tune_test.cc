// pith tune as a person runs it: what it chooses, the file that auto takes, and what it refuses.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli_harness.h"

namespace pith {
namespace {

using nlohmann::json;
using test::Cli;
using test::kModel;
using test::read;
using test::Result;
using test::words;
using test::write;

class CliTune : public Cli {
 protected:
  /// The command on so many words, in pieces of `size` tokens of which the last `score` count.
  std::vector<std::string> tune_words(size_t count, const std::string& size,
                                      const std::string& score,
                                      const std::vector<std::string>& more) {
    write(folder_ / "text", words(count));
    std::vector<std::string> all{"tune", "-m", kModel, "-f", folder_ / "text", "-t", "2", "-c"};
    all.insert(all.end(), {size, "--score", score});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  std::vector<std::string> tune(const std::vector<std::string>& more,
                                const std::string& pieces = "2", const std::string& samples = "1",
                                const std::string& length = "300") {
    std::vector<std::string> all = tune_words(
        900, "160", "24",
        {"--pieces", pieces, "--task", "passkey", "--samples", samples, "--length", length});
    for (const char* form : {"exact+kivi(bits=2),sink=0,window=16", "exact+int8,sink=0,window=16"})
      all.insert(all.end(), {"--form", form});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(CliTune, LayersThatLoseMostGetTheBetterForm) {
  const std::string file = folder_ / "p.jsonl";
  const Result r = run(tune({"--bits", "6", "--json", "-o", file}));
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  double least_better = 1e9, most_worse = 0;
  size_t better = 0, heads = 0;
  for (const json& u : j["units"]) {
    const size_t size = u.contains("head") ? 1 : 2;  // KV heads of the demo model
    const double loss = u["kl"][0].get<double>() +
                        j["answer_weight"].get<double>() * u["answers_kl"][0].get<double>();
    const double share = loss / static_cast<double>(size);
    EXPECT_GT(u["answers_kl"][0], 0);
    heads += size;
    if (u["forms"][0].get<std::string>().find("int8") != std::string::npos)
      better += size, least_better = std::min(least_better, share);
    else if (size == 1)  // a layer may not have fitted where a head of less weight did
      most_worse = std::max(most_worse, share);
  }
  EXPECT_EQ(heads, 16u);
  EXPECT_GT(j["units"].size(), 8u) << "layers of more than an equal share are weighed by head";
  EXPECT_GT(better, 0u);
  EXPECT_LT(better, 16u);
  EXPECT_GT(most_worse, 0);
  EXPECT_GE(least_better, most_worse);
  const json &forms = j["forms"], &found = j["tuned"];
  ASSERT_EQ(forms.size(), 2u);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_LE(found[0]["bits"], 6.01);
  EXPECT_GT(found[0]["bits"], forms[0]["bits"]);
  for (const char* loss : {"kl", "answers_kl"}) {
    EXPECT_LT(found[0][loss]["mean"], forms[0][loss]["mean"]);
    EXPECT_GT(found[0][loss]["mean"], forms[1][loss]["mean"]);
  }

  // A line per policy, and auto takes the one that fits.
  const std::string lines = read(file);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  const auto inspect = [&](const std::string& presets) {
    return std::vector<std::string>{"inspect", "-m",          kModel,  "-c",
                                    "4096",    "--kv-policy", "auto",  "--kv-budget",
                                    "47%",     "--presets",   presets, "--json"};
  };
  const Result chosen = run(inspect(file));
  ASSERT_EQ(chosen.status, 0) << chosen.err;
  EXPECT_NE(chosen.out.find(found[0]["policy"].get<std::string>()), std::string::npos)
      << chosen.out;

  // Of another model, they are refused.
  std::string other = lines;
  for (size_t at = 0; (at = other.find("fingerprint\":\"", at)) != std::string::npos; at += 14)
    other[at + 14] = other[at + 14] == '0' ? '1' : '0';
  write(folder_ / "other.jsonl", other);
  refused(inspect(folder_ / "other.jsonl"), 10, "another model");
}

// Measurements serve other bits and weights: only the found policy is measured anew.
TEST_F(CliTune, MeasurementsAreKept) {
  const std::string kept = folder_ / "kept.jsonl";
  const auto lines = [&] {
    const std::string text = read(kept);
    return std::count(text.begin(), text.end(), '\n');
  };
  const Result first = run(tune({"--bits", "6", "--json", "--measured", kept}));
  ASSERT_EQ(first.status, 0) << first.err;
  const auto before = lines();
  const Result second = run(tune({"--bits", "6,7", "--json", "--measured", kept}));
  ASSERT_EQ(second.status, 0) << second.err;
  const json a = json::parse(first.out), b = json::parse(second.out);
  EXPECT_EQ(a["forms"], b["forms"]);
  ASSERT_EQ(b["tuned"].size(), 2u);
  EXPECT_EQ(a["tuned"][0], b["tuned"][0]);
  EXPECT_GT(b["tuned"][1]["bits"], a["tuned"][0]["bits"]);
  EXPECT_LE(b["tuned"][1]["bits"], 7.01);
  EXPECT_EQ(lines(), before + 6)
      << "two pieces and a sample of one policy more, to choose on and to report on";
}

// A dictionary that all KV heads of a layer share costs more a head where one of them alone uses
// it: what is found takes no more than asked all the same.
TEST_F(CliTune, WhatIsFoundFits) {
  const std::string codes = "exact+csr(s=4,dict=" + kModel + "/csr.safetensors,online=0),window=16";
  const std::string kept = folder_ / "kept.jsonl";
  const Result r =
      run(tune_words(1500, "600", "8",
                     {"--pieces", "1", "--samples", "0", "--bits", "7.75,8.4", "--form", codes,
                      "--form", "exact+int8,window=16", "--json", "--measured", kept}));
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  size_t dropped = 0;
  std::istringstream lines(read(kept));
  for (std::string line; std::getline(lines, line);) {
    const json measured = json::parse(line);
    const std::string policy = measured["policy"];
    const auto is = [&](const json& t) { return t["policy"] == policy; };
    if (!policy.starts_with("exact;") && std::ranges::none_of(j["forms"], is) &&
        std::ranges::none_of(j["tuned"], is))
      ++dropped;
  }
  EXPECT_GT(dropped, 0u) << "a first choice that took too much";
  EXPECT_LE(j["tuned"][0]["bits"], 7.75);
  EXPECT_LE(j["tuned"][1]["bits"], 8.4);
  EXPECT_GT(j["tuned"][1]["bits"], j["forms"][0]["bits"]);
}

TEST_F(CliTune, TheTextAlone) {
  const Result r = run(tune({"--bits", "6", "--json"}, "1", "0"));
  ASSERT_EQ(r.status, 0) << r.err;
  for (const json& u : json::parse(r.out)["units"]) EXPECT_EQ(u["answers_kl"][0], 0);
}

TEST_F(CliTune, WhatCannotBeIsRefused) {
  refused(tune({"--bits", "1"}), 10, "less than any of the forms");
  refused(tune({"--bits", "7"}, "9"), 10, "pieces of 160 tokens, 18 are needed");
  refused(tune({"--form", "exact;layers=0:exact+int4"}), 10, "one policy for any layer");
  refused(tune({"--form", "exakt"}), 10, "exakt");
  refused(tune({"-o", folder_ / "text"}), 10, "text");
  refused(tune({"--bits", "0"}), 2, "--bits");
  refused(tune({}, "2", "1", "20"), 10, "too few for this task");
  refused(tune({"--measured", folder_ / "text"}), 12, "text");
}

}  // namespace
}  // namespace pith
