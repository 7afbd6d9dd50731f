// Saved sessions on the command line: two commands say what one says, and pith session looks.

#include <sys/stat.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli_harness.h"
#include "device_node.h"

namespace pith {
namespace {

using nlohmann::json;
using test::kModel;
using test::Result;

class CliSession : public test::Cli {
 protected:
  std::string file() const { return (folder_ / "s.pith").string(); }
  static std::vector<std::string> command(const std::string& prompt,
                                          const std::vector<std::string>& more) {
    std::vector<std::string> all{
        "run",  "-m",     kModel,        "-p",
        prompt, "-n",     "12",          "-t",
        "1",    "--temp", "0",           "-q",
        "-c",   "400",    "--kv-policy", "keydiff(budget=16)+int4,window=8"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(CliSession, GoesOnWhereItWas) {
  const std::string prompt = test::words(60);
  const Result first = run(command(prompt, {"--session-save", file(), "--json"}));
  ASSERT_EQ(first.status, 0) << first.err;
  struct stat status {};
  ASSERT_EQ(stat(file().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);

  const Result ids = run({"session", "tokens", file(), "--json"});
  ASSERT_EQ(ids.status, 0) << ids.err;
  const json tokens = json::parse(ids.out);
  const json shown = json::parse(first.out);
  // Prompt and answer, the last token of it too.
  const std::vector<int32_t> all = tokens["ids"], drawn = shown["tokens"];
  ASSERT_GE(all.size(), drawn.size());
  EXPECT_EQ(std::vector<int32_t>(all.end() - static_cast<ptrdiff_t>(drawn.size()), all.end()),
            drawn);

  // The same question twice gets the same answer, and saving over the file is asked for.
  const Result one = run(command(" and then", {"--session-load", file(), "--json"}));
  const Result two = run(command(" and then", {"--session-load", file(), "--json", "--session-save",
                                               file(), "--session-overwrite"}));
  ASSERT_EQ(one.status, 0) << one.err;
  ASSERT_EQ(two.status, 0) << two.err;
  EXPECT_EQ(json::parse(one.out)["text"], json::parse(two.out)["text"]);
  const Result more = run({"session", "tokens", file(), "--json"});
  EXPECT_GT(json::parse(more.out)["count"], tokens["count"]);
}

TEST_F(CliSession, SaysWhatItIs) {
  ASSERT_EQ(run(command("The ship lay", {"--session-save", file()})).status, 0);
  const Result text = run({"session", "info", file()});
  ASSERT_EQ(text.status, 0) << text.err;
  for (const char* word : {"keydiff", "context       400", "tokens", "chunk", "isa"})
    EXPECT_NE(text.out.find(word), std::string::npos) << word << " in\n" << text.out;
  const json info = json::parse(run({"session", "info", file(), "--json"}).out);
  EXPECT_EQ(info["key"]["context"], "400");
  EXPECT_EQ(info["key"]["device"], "cpu");
  EXPECT_EQ(info["bytes"], std::filesystem::file_size(file()));
  EXPECT_EQ(run({"session", "verify", file()}).status, 0);

  std::string bytes = test::read(file());
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  test::write(file(), bytes);
  EXPECT_EQ(run({"session", "info", file()}).status, 0) << "its header is whole";
  refused({"session", "verify", file()}, 12, "damaged");
  refused(command(" on", {"--session-load", file()}), 12, "damaged");
  refused({"session", "info", kModel + "/config.json"}, 12, "no session");
  refused({"session", "info", (folder_ / "none").string()}, 11, "none");
  EXPECT_EQ(run({"session"}).status, 2);
}

TEST_F(CliSession, RefusesWhatCannotBe) {
  ASSERT_EQ(run(command("The ship lay", {"--session-save", file()})).status, 0);
  refused(command("The ship lay", {"--session-save", file()}), 17, "--session-overwrite");
  refused({"run", "-m", kModel, "-p", " on", "-c", "400", "--session-load", file()}, 10,
          "its policy");
  refused(command(" on", {"--session-load", file(), "--kv-seed", "9"}), 10, "its seed");
  refused(command(" on", {"--session-load", file(), "-ub", "64"}), 10, "its chunk");
  refused({"run", "-m", kModel, "-i", "--session-load", file()}, 10, "-i");
  if (const std::string full = test::device_node(folder_, test::kFull); !full.empty())
    refused(command("x", {"--session-save", full, "--session-overwrite"}), 17, "/full");
  refused(command("x", {"--session-save", folder_.string() + "/no/such"}), 17, "no/such");
}

TEST_F(CliSession, BiasesAreAddedToLogits) {
  const auto tokens = [&](std::vector<std::string> more) {
    std::vector<std::string> all{"run", "-m",     kModel, "-p",     "The", "-n",
                                 "3",   "--temp", "0",    "--json", "-t",  "1"};
    all.insert(all.end(), more.begin(), more.end());
    return json::parse(run(all).out)["tokens"].get<std::vector<int>>();
  };
  const auto plain = tokens({});
  EXPECT_EQ(tokens({"--logit-bias", "300+1e3"}), (std::vector<int>{300, 300, 300}));
  const std::string first = std::to_string(plain[0]);
  EXPECT_NE(tokens({"--logit-bias", first + "-inf", "--logit-bias", "301-1"})[0], plain[0]);
  for (const char* wrong : {"300", "x+1", "300+", "300*2", "300+1x"})
    refused(command("The", {"--logit-bias", wrong}), 10, "--logit-bias");
  refused(command("The", {"--logit-bias", "300+inf"}), 10, "finite");
}

// Two commands with a file between them answer as one process does.
TEST_F(CliSession, PenaltiesAndDrawsAreThoseOfOneProcess) {
  for (const std::vector<std::string>& sampling :
       {std::vector<std::string>{"--temp", "0", "--repeat-penalty", "3", "--repeat-last-n", "-1"},
        std::vector<std::string>{"--temp", "0.9", "-s", "9", "--frequency-penalty", "0.5"}}) {
    const auto command = [&](std::vector<std::string> more) {
      std::vector<std::string> all{"run", "-m", kModel, "-n", "10", "-q", "-t", "1"};
      all.insert(all.end(), sampling.begin(), sampling.end());
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    const std::string path = (folder_ / ("p" + sampling[1])).string();
    const Result one = run(command({"-i"}), "The old house\n and\n");
    ASSERT_EQ(run(command({"-p", "The old house", "--session-save", path})).status, 0);
    const Result two = run(command({"-p", " and", "--session-load", path, "--no-display-prompt"}));
    ASSERT_EQ(two.status, 0) << two.err;
    EXPECT_TRUE(one.out.ends_with(two.out)) << one.out << "\n---\n" << two.out;
    // Without a prompt the answer goes on where it was cut.
    const Result on = run(command({"-p", "", "--session-load", path}));
    EXPECT_EQ(on.status, 0) << on.err;
    const Result whole =
        run({"run", "-m", kModel, "-n", "20", "-q", "-t", "1", "-p", "The old house", "--json",
             sampling[0], sampling[1], sampling[2], sampling[3], sampling[4], sampling[5]});
    EXPECT_TRUE(json::parse(whole.out)["text"].get<std::string>().ends_with(
        on.out.substr(0, on.out.size() - 1)));
  }
}

TEST_F(CliSession, ATalkIsSavedAndLoadedAsOne) {
  const auto command = [&](const std::string& text, std::vector<std::string> more) {
    std::vector<std::string> all{"run",    "-m",     kModel, "--chat", "--chat-template",
                                 "chatml", "-p",     text,   "-n",     "8",
                                 "-q",     "--temp", "0",    "-t",     "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Result first = run(command("Say hi.", {"--system", "Be brief.", "--session-save", file()}));
  ASSERT_EQ(first.status, 0) << first.err;
  const std::string second = (folder_ / "two.pith").string();
  const Result more = run(command("Again.", {"--session-load", file(), "--session-save", second}));
  ASSERT_EQ(more.status, 0) << more.err;
  const json ids = json::parse(run({"session", "tokens", second, "--json"}).out)["ids"];
  const std::string listed = (folder_ / "ids").string();
  std::ofstream(listed) << ids.dump();
  const Result read = run({"tokenize", "-m", kModel, "--ids", listed});
  // One system block, and the first answer has its end.
  ASSERT_NE(read.out.find("Be brief."), std::string::npos) << read.err;
  EXPECT_EQ(read.out.find("Be brief."), read.out.rfind("Be brief.")) << read.out;
  EXPECT_EQ(read.out.find("system"), read.out.rfind("system")) << read.out;
  const size_t answer = read.out.find("assistant");
  EXPECT_NE(read.out.find("<|im_end|>", answer), std::string::npos) << read.out;
  EXPECT_LT(read.out.find("<|im_end|>", answer), read.out.find("Again.")) << read.out;

  // A session that no chat saved has no messages.
  ASSERT_EQ(run({"run", "-m", kModel, "-p", "The", "-n", "2", "-q", "--session-save",
                 (folder_ / "plain").string()})
                .status,
            0);
  const Result refused = run(command("Again.", {"--session-load", (folder_ / "plain").string()}));
  EXPECT_EQ(refused.status, 10);
  EXPECT_NE(refused.err.find("not saved by a chat"), std::string::npos) << refused.err;
}

}  // namespace
}  // namespace pith
