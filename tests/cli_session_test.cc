// Saved sessions on the command line: two commands say what one says, and pith session looks.

#include <sys/stat.h>

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

}  // namespace
}  // namespace pith
