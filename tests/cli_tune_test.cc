// pith tune as a person runs it: what it chooses, the file that auto takes, and what it refuses.

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli_harness.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
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
    std::vector<std::string> all{"tune", "-m", kModel, "-f", folder_ / "text", "-c", size};
    all.insert(all.end(), {"--score", score});
    all.insert(all.end(), more.begin(), more.end());
    if (std::ranges::find(more, "-o") == more.end())
      all.insert(all.end(), {"-o", folder_ / "out.jsonl"});
    if (std::ranges::find(more, "-t") == more.end()) all.insert(all.end(), {"-t", "1"});
    return all;
  }

  std::vector<std::string> tune(const std::vector<std::string>& more,
                                const std::string& pieces = "2", const std::string& samples = "1",
                                const std::string& length = "300") {
    std::vector<std::string> all{"--pieces",  pieces,  "--task",   "passkey",
                                 "--samples", samples, "--length", length};
    for (const char* form : {"exact+kivi(bits=2),sink=0,window=16", "exact+int8,sink=0,window=16"})
      all.insert(all.end(), {"--form", form});
    all.insert(all.end(), more.begin(), more.end());
    return tune_words(900, "160", "24", all);
  }
};

TEST_F(CliTune, HeadsThatLoseMostGetTheBetterForm) {
  const std::string file = folder_ / "p.jsonl";
  const Result r = run(tune({"--bits", "6", "--json", "-o", file}));
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  double least_better = 1e9, most_worse = 0, predicted = 0;
  size_t better = 0;
  ASSERT_EQ(j["heads"].size(), 16u);
  for (const json& h : j["heads"]) {
    EXPECT_GT(h["answers_kl"][0], 0);
    const double loss = h["kl"][0].get<double>() +
                        j["answer_weight"].get<double>() * h["answers_kl"][0].get<double>();
    const size_t form = h["chosen"][0];
    predicted += h["kl"][form].get<double>();
    if (form == 1)
      ++better, least_better = std::min(least_better, loss);
    else
      most_worse = std::max(most_worse, loss);
  }
  EXPECT_GT(better, 0u);
  EXPECT_LT(better, 16u);
  EXPECT_GE(least_better, 0.99 * most_worse) << "int8 loses a little too";
  const json &forms = j["forms"], &found = j["tuned"];
  ASSERT_EQ(forms.size(), 2u);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_NEAR(found[0]["predicted"]["text"], predicted, 1e-9);
  EXPECT_LE(found[0]["bits"], 6.000001);
  EXPECT_GT(found[0]["bits"], forms[0]["bits"]);
  for (const char* loss : {"text", "answers"}) {
    EXPECT_LT(found[0]["predicted"][loss], forms[0]["predicted"][loss]);
    EXPECT_GT(found[0]["predicted"][loss], forms[1]["predicted"][loss]);
    EXPECT_GT(found[0]["chosen_on"][loss], 0);
  }
  EXPECT_GT(found[0]["kl"]["mean"], 0);

  // A line per policy, and auto takes the one that fits.
  const std::string lines = read(file);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1);
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

// Measurements serve other bits and weights: only the found policy is measured anew. Threads change
// nothing.
TEST_F(CliTune, MeasurementsAreKept) {
  const std::string kept = folder_ / "kept.jsonl", out = folder_ / "p.jsonl";
  const auto lines = [&] {
    const std::string text = read(kept);
    return std::count(text.begin(), text.end(), '\n');
  };
  const Result first = run(tune({"--bits", "6", "--json", "--measured", kept, "-o", out}));
  ASSERT_EQ(first.status, 0) << first.err;
  const std::string presets = read(out);
  const auto before = lines();
  const Result second = run(tune({"--bits", "6", "--json", "--measured", kept, "-o", out}));
  ASSERT_EQ(second.status, 0) << second.err;
  EXPECT_EQ(first.out, second.out);
  EXPECT_EQ(lines(), before) << "nothing is measured twice";
  const Result fresh = run(tune({"--bits", "6", "--json", "-t", "2", "-o", out}));
  ASSERT_EQ(fresh.status, 0) << fresh.err;
  EXPECT_EQ(first.out, fresh.out);
  EXPECT_EQ(read(out), presets);
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
    if (measured["kind"] != "tune") continue;
    const auto is = [&](const json& t) { return t["policy"] == measured["policy"]; };
    if (std::ranges::none_of(j["tuned"], is)) ++dropped;
  }
  EXPECT_GT(dropped, 0u) << "a first choice that took too much";
  EXPECT_LE(j["tuned"][0]["bits"], 7.75);
  EXPECT_LE(j["tuned"][1]["bits"], 8.4);
  EXPECT_GT(j["tuned"][1]["bits"], j["forms"][0]["bits"]);
}

// Nobody names text, bits or file: the text that ships, three policies, and a file of presets
// beside, which a second run does not write over.
TEST_F(CliTune, TheModelAlone) {
  const fs::path home = fs::current_path();
  fs::current_path(folder_);
  const std::vector<std::string> words{
      "tune",    "-m", kModel,   "-t",         "1",      "--samples",       "0",
      "--score", "8",  "--form", "exact+int8", "--form", "local(window=5%)"};
  const Result r = run(words);
  EXPECT_EQ(r.status, 0) << r.err;
  refused(words, 10, "demo.tuned.jsonl is there already");
  fs::current_path(home);
  EXPECT_NE(r.out.find("the text that ships with pith"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("Wrote demo.tuned.jsonl"), std::string::npos) << r.out;
  std::istringstream out(r.out);
  for (std::string line; std::getline(out, line);) EXPECT_LE(line.size(), 82u) << line;
  const std::string lines = read(folder_ / "demo.tuned.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
}

TEST_F(CliTune, WhatCannotBeIsRefused) {
  refused(tune({"--bits", "1"}), 10, "less than any of the forms");
  refused(tune({"--bits", "7"}, "9"), 10, "pieces of 160 tokens, 18 are needed");
  refused(tune({"--form", "exact;layers=0:exact+int4"}), 10, "one policy for any layer");
  refused(tune({"--form", "exact+int4,prompt=exact"}), 10, "leave prompt= out");
  refused(tune({"--form", "exakt"}), 10, "exakt");
  refused(tune({"-o", folder_ / "text"}), 10, "text");
  refused(tune({"--bits", "0"}), 2, "--bits");
  refused(tune({}, "2", "1", "20"), 10, "too few for this task");
  refused(tune({"--measured", folder_ / "text"}), 12, "text");
  refused(tune_words(900, "8", "6", {}), 10, "score 3 to 4");
  refused(tune_words(900, "99999", "6", {}), 10, "the model's context is");
  refused(tune_words(10, "0", "6", {}), 10, "give a longer text");
}

}  // namespace
}  // namespace pith
