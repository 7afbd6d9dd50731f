// pith train-dict as a person runs it, and what its file is good for.

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
using test::write;

std::vector<std::string> train(const std::string& out) {
  return {"train-dict", "-m",      kModel,    "-p",      words(500), "-o",    out,
          "--tokens",   "512",     "--piece", "256",     "--atoms",  "32",    "--epochs",
          "2",          "--batch", "64",      "--share", "layer",    "--json"};
}

TEST_F(Cli, ADictionaryIsTrainedUsedAndBoundToItsModel) {
  const std::string file = folder_ / "d.safetensors";
  const Result r = run(train(file));
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  EXPECT_EQ(j["settings"]["share"], "layer");
  EXPECT_FALSE(std::filesystem::exists(file + ".checkpoint"));
  size_t layers[2] = {}, atom_bytes = 0;
  for (const json& d : j["dictionaries"]) {
    const bool values = d["side"] == "values";
    layers[values] += d["last_layer"].get<size_t>() - d["first_layer"].get<size_t>() + 1;
    atom_bytes += 32 * (values ? 32 : 64) * 2;
    ASSERT_EQ(d["losses"].size(), 3u);
    EXPECT_LT(d["losses"][2].get<double>(), d["losses"][0].get<double>());
    EXPECT_LT(d["losses"][2].get<double>(), d["power"].get<double>());
  }
  EXPECT_EQ(layers[0], 8u);
  EXPECT_EQ(layers[1], 8u);

  const std::string again = folder_ / "again.safetensors";
  run(train(again));
  EXPECT_EQ(read(again), read(file)) << "the same command makes the same file";

  const auto generate = [&](const std::string& dict) {
    return std::vector<std::string>{
        "run",    "-m",          kModel,
        "-p",     words(100),    "-n",
        "4",      "--temp",      "0",
        "--json", "--kv-policy", "exact+csr(s=8,online=0,dict=" + dict + "),sink=4,window=16"};
  };
  const Result used = run(generate(file));
  ASSERT_EQ(used.status, 0) << used.err;
  EXPECT_EQ(json::parse(used.out)["ledger"]["bytes"]["shared"], atom_bytes) << used.out;

  std::string bytes = read(file);
  const size_t at = bytes.find("\"fingerprint\":\"");
  ASSERT_NE(at, std::string::npos);
  char& digit = bytes[at + 20];
  digit = digit == '0' ? '1' : '0';
  write(folder_ / "other.safetensors", bytes);
  refused(generate(folder_ / "other.safetensors"), 10, "not for this model");
  write(folder_ / "cut.safetensors", bytes.substr(0, 200));
  refused(generate(folder_ / "cut.safetensors"), 12, "cut.safetensors");
  refused(generate(folder_ / "none.safetensors"), 11, "none.safetensors");
}

TEST_F(Cli, TrainDictRefusesWhatItCannot) {
  refused({"train-dict", "-m", kModel, "-p", "a few words", "-o", folder_ / "d"}, 10, "tokens");
  std::vector<std::string> odd = train(folder_ / "d");
  odd.insert(odd.end(), {"--value-chunks", "8"});
  refused(odd, 10, "multiples of 16");
}

}  // namespace
}  // namespace pith
