// pith quantize: the demo model as a GGUF file, which every command then takes.

#include <nlohmann/json.hpp>
#include <sstream>

#include "cli_harness.h"
#include "paths.h"

namespace pith {
namespace {

using nlohmann::json;
using test::kModel;
using test::read;
using test::Result;

class CliQuantize : public test::Cli {
 protected:
  std::string out() const { return (folder_ / "demo.gguf").string(); }
  /// The demo model with GPT-2's split rules: its own have no name in GGUF.
  std::string model() const {
    const auto copy = folder_ / "demo";
    if (std::filesystem::exists(copy)) return copy.string();
    std::filesystem::copy(kModel, copy);
    json tokenizer = json::parse(read(copy / "tokenizer.json"));
    tokenizer["pre_tokenizer"] = {
        {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
    test::write(copy / "tokenizer.json", tokenizer.dump());
    return copy.string();
  }
};

TEST_F(CliQuantize, WhatIsWrittenRunsAsTheSourceDoes) {
  const Result written = run({"quantize", "-m", model(), "-o", out(), "--type", "BF16", "-q"});
  ASSERT_EQ(written.status, 0) << written.err;
  EXPECT_NE(written.out.find("BF16"), std::string::npos) << written.out;
  const std::vector<std::string> base{
      "-p", "The ship lay at anchor", "--temp", "0", "-n", "12", "-q", "-t", "1"};
  const auto text = [&](const std::string& path) {
    std::vector<std::string> all{"run", "-m", path};
    all.insert(all.end(), base.begin(), base.end());
    return run(all).out;
  };
  EXPECT_EQ(text(out()), text(model()));
  const auto ids = [&](const std::string& path) {
    return json::parse(
        run({"tokenize", "-m", path, "-p", "It's 12 o'clock,\n naïve", "--json"}).out)["ids"];
  };
  EXPECT_EQ(ids(out()), ids(model()));
}

TEST_F(CliQuantize, InspectNamesManyTypesIn80Columns) {
  const std::string source = (repo_dir() / "tests/data/models/qwen3").string();
  ASSERT_EQ(run({"quantize", "-m", source, "-o", out(), "--type", "q4_k", "-q"}).status, 0);
  std::istringstream lines(run({"inspect", out()}).out);
  std::string line, all;
  while (std::getline(lines, line)) {
    if (line.find(out()) == line.npos) EXPECT_LE(line.size(), 80u) << line;
    all += line;
  }
  for (const char* type : {"F16 12.0 KiB", "F32 1.75 KiB", "Q5_0 41.2 KiB", "Q8_0"})
    EXPECT_NE(all.find(type), all.npos) << all;
}

TEST_F(CliQuantize, PoliciesAreChosenForAFileAsForItsSource) {
  run({"quantize", "-m", model(), "-o", out(), "--type", "BF16", "-q"});
  const auto chosen = [&](const std::string& path) {
    const Result said =
        run({"run", "-m", path, "-p", "The", "-n", "2", "--kv-policy", "auto", "--kv-budget", "25%",
             "-c", "8000", "--temp", "0", "--no-screen", "-v"});
    EXPECT_EQ(said.status, 0) << said.err;
    const size_t at = said.err.find("pith: auto: ");
    EXPECT_NE(at, std::string::npos) << said.err;
    return said.err.substr(at, said.err.find('\n', at) - at);
  };
  EXPECT_EQ(chosen(out()), chosen(model()));
}

TEST_F(CliQuantize, SaysWhatFellBackAndWhatIsRefused) {
  const json report =
      json::parse(run({"quantize", "-m", model(), "-o", out(), "--type", "q4_k", "--json"}).out);
  EXPECT_EQ(report["out"], out());
  EXPECT_EQ(report["bytes"], std::filesystem::file_size(out()));
  for (const json& t : report["tensors"]) {
    const bool odd = t["shape"].size() == 2 && t["shape"][1].get<int>() % 256 != 0 &&
                     t["name"] != "token_embd.weight" && t["name"] != "output.weight";
    EXPECT_EQ(t["fell_back"], odd) << t;
  }
  const Result again = run({"quantize", "-m", out(), "-o", out() + "2", "--type", "q4_0"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_NE(again.err.find("quantized already"), std::string::npos) << again.err;
  refused({"quantize", "-m", kModel, "-o", out()}, 13, "splits text into words");
  refused({"quantize", "-m", kModel, "-o", out(), "--type", "q6_k"}, 10, "q8_0, q4_0, q4_k");
  refused({"quantize", "-m", out(), "-o", out()}, 10, "is read");
  refused({"quantize", "-m", kModel, "-o", "/nowhere/x.gguf"}, 17, "/nowhere");
  refused({"quantize", "-m", "/nowhere", "-o", out()}, 11, "/nowhere");
}

}  // namespace
}  // namespace pith
