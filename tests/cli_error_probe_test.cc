// The error probe as a person runs it.

#include <nlohmann/json.hpp>

#include "cli_harness.h"

namespace pith {
namespace {

using nlohmann::json;
using test::Cli;
using test::kModel;
using test::Result;

std::vector<std::string> answer(std::vector<std::string> more) {
  more.insert(more.begin(), {"run", "-m", kModel, "-p",
                             "The ship lay at anchor in the bay, and the men sat on the quay and "
                             "talked of the storm that had passed in the night, of the boats that "
                             "had not come home, and of the price of fish in the town. Nobody had",
                             "-n", "8", "--temp", "0", "--ignore-eos", "--json"});
  return more;
}

TEST_F(Cli, RunSaysItsAttentionError) {
  const Result r = run(answer(
      {"--attn-error-probe", "64", "--attn-error-every", "2", "--kv-policy", "local(window=8)"}));
  ASSERT_EQ(r.status, 0) << r.err;
  const json j = json::parse(r.out);
  ASSERT_EQ(j["attention_error"].size(), 8u);
  EXPECT_EQ(j["attention_error"][3]["comparisons"], 4);
  EXPECT_GT(j["attention_error"][0]["high"].get<double>(), 0.05);
  EXPECT_GT(j["ledger"]["bytes"]["probe"].get<double>(), 0);
  const json plain = json::parse(run(answer({"--kv-policy", "local(window=8)"})).out);
  EXPECT_FALSE(plain.contains("attention_error"));
  EXPECT_EQ(plain["text"], j["text"]) << "the answer does not change";
}

TEST_F(Cli, RunStopsAboveTheLimit) {
  const Result r = run(answer({"--max-attn-error", "0.05", "--kv-policy", "local(window=4)"}));
  EXPECT_EQ(r.status, 9) << r.err;
  EXPECT_EQ(json::parse(r.out)["stop_reason"], "attention error above the limit");
}

TEST_F(Cli, ErrorProbeRefusesWhatCannotBe) {
  refused(answer({"--attn-error-probe", "5"}), 10, "use 64 to 16777216 rows");
  refused(answer({"--attn-error-probe", "64", "--kv-policy", "streaming_llm(rope=cache)"}), 13,
          "rope=cache");
  refused(answer({"--max-attn-error", "x"}), 2, "max-attn-error");
  refused(
      {"eval", "ppl", "-m", kModel, "-p", "a text", "--mode", "chunks", "--attn-error-probe", "64"},
      10, "--mode decode or continue");
  refused({"eval", "error-probe", "-m", kModel, "-p", "short", "--kv-policy", "exact"}, 10,
          "are needed");
  refused({"eval", "error-probe", "-m", kModel, "-p", "short"}, 10, "no policy");
}

}  // namespace
}  // namespace pith
