// pith ask: documents are read once, and answers are those of a conversation that read them whole.

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli_harness.h"

namespace pith {
namespace {

using nlohmann::json;
using test::kModel;
using test::Result;

class CliAsk : public test::Cli {
 protected:
  std::string document() {
    const std::string path = (folder_ / "tale.txt").string();
    std::ofstream(path) << test::words(150);
    return path;
  }
  Result ask(const std::vector<std::string>& more) {
    std::vector<std::string> all{"ask",    document(), "-m", kModel, "--chat-template",
                                 "chatml", "-t",       "1",  "-n",   "12",
                                 "-c",     "600"};
    all.insert(all.end(), more.begin(), more.end());
    return run(all);
  }
};

TEST_F(CliAsk, ManyQuestionsAreAnsweredAsEachAlone) {
  const std::vector<std::string> policy{"--kv-policy", "exact", "--json"};
  const auto with = [&](std::vector<std::string> questions) {
    questions.insert(questions.end(), policy.begin(), policy.end());
    const Result result = ask(questions);
    EXPECT_EQ(result.status, 0) << result.err;
    return json::parse(result.out);
  };
  const json both = with({"-q", "Where was the ship?", "-q", "Who was there?"});
  EXPECT_EQ(both["answers"].size(), 2u);
  EXPECT_EQ(both["answers"][0], with({"-q", "Where was the ship?"})["answers"][0]);
  EXPECT_EQ(both["answers"][1], with({"-q", "Who was there?"})["answers"][0]);
  EXPECT_EQ(both["policies"][0]["bytes"], both["exact_bytes"]);
}

TEST_F(CliAsk, ComparesWithTheExactCache) {
  const Result same = ask({"-q", "Where?", "--kv-policy", "exact", "--compare", "--json"});
  ASSERT_EQ(same.status, 0) << same.err;
  EXPECT_EQ(json::parse(same.out)["answers"][0]["same"], true);
  const Result other = ask(
      {"-q", "Where was the ship?", "--compare", "--kv-policy", "streaming_llm(window=16),sink=2"});
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_NE(other.out.find("the exact cache"), std::string::npos) << other.out;
  EXPECT_NE(other.err.find("of 1 answers are the same"), std::string::npos) << other.err;
}

TEST_F(CliAsk, QuestionsOfWindowsLinesAndTheProbesFigure) {
  std::vector<std::string> all{"ask",
                               document(),
                               "-m",
                               kModel,
                               "--chat-template",
                               "chatml",
                               "-n",
                               "40",
                               "-t",
                               "1",
                               "-c",
                               "600",
                               "--kv-policy",
                               "local(window=8)",
                               "--attn-error-probe",
                               "64",
                               "--json"};
  const Result r = run(all, "Where?\r\n\r\nWho?\r\n");
  ASSERT_EQ(r.status, 0) << r.err;
  const json answers = json::parse(r.out)["answers"];
  ASSERT_EQ(answers.size(), 2u);
  EXPECT_EQ(answers[0]["question"], "Where?");
  EXPECT_GT(answers[1]["attention_error"], 0.0);
  all.pop_back();
  EXPECT_NE(run(all, "Where?\n").out.find("[attention error 0."), std::string::npos);
}

TEST_F(CliAsk, SaysWhatIsMissing) {
  const auto wrong = [&](const Result& r, const std::string& words) {
    EXPECT_EQ(r.status, 10) << r.err;
    EXPECT_NE(r.err.find(words), std::string::npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  };
  for (const char* empty : {"", " \n"})
    wrong(ask({"-q", "Where?", "-q", empty, "--kv-policy", "exact"}), "a question is empty");
  for (const char* empty : {"", " \r\n"}) {
    test::write(folder_ / "empty.txt", empty);
    wrong(run({"ask", document(), file("empty.txt"), "-m", kModel, "-q", "a", "--kv-policy",
               "exact"}),
          "empty.txt has no text in it");
  }
  EXPECT_EQ(run({"ask", "-m", kModel, "-q", "a"}).status, 2);
  EXPECT_EQ(run({"ask", "/nowhere.txt", "-m", kModel, "-q", "a"}).status, 2);
  const Result none = ask({});
  EXPECT_EQ(none.status, 10) << none.err;
  EXPECT_NE(none.err.find("no question"), std::string::npos) << none.err;
}

}  // namespace
}  // namespace pith
