// pith reproduce as a person runs it.

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

TEST_F(Cli, ReproduceWritesTablesInThreeForms) {
  test::write(folder_ / "text", words(900));
  const Result r = run({"reproduce", "buzz", "-m", kModel, "-f", folder_ / "text", "--quick",
                        "--seeds", "1", "--json", "--write", folder_});
  ASSERT_EQ(r.status, 0) << r.err;
  std::istringstream lines(r.out);
  std::string line;
  size_t count = 0;
  for (; std::getline(lines, line); ++count) {
    const json j = json::parse(line);
    EXPECT_EQ(j["paper"], "buzz");
    EXPECT_FALSE(j["rows"].empty());
  }
  EXPECT_EQ(count, 5u);
  const std::string page = read(folder_ / "reproduce_buzz.md");
  EXPECT_NE(page.find("## Perplexity at a cache"), std::string::npos);
  EXPECT_NE(page.find("| the paper says |"), std::string::npos);
  EXPECT_EQ(page.find(folder_.string()), std::string::npos) << "no path of this machine";
}

TEST_F(Cli, ReproduceRefusesWhatCannotBe) {
  const auto with = [](std::vector<std::string> more) {
    more.insert(more.begin(), "reproduce");
    more.insert(more.end(), {"-m", kModel});
    return more;
  };
  refused({"reproduce", "buzz", "-m", kModel, "-p", "x", "--dict", "a"}, 10, "--dict is for csr");
  refused({"reproduce", "csr", "-m", kModel, "-p", words(900), "--quick", "--dict", "none"}, 11,
          "none");
  refused(with({}), 2, "paper is required");
  refused(with({"nobody", "-p", "x"}), 10, "known: ");
  refused(with({"buzz", "-p", words(900), "--quick", "--tables", "threshold,error"}), 10,
          "'error' is no table of buzz; its tables: perplexity, threshold");
  refused(with({"buzz", "-p", "too short"}), 10, "give a longer text or --quick");
  refused(with({"buzz", "-p", "too short", "--quick"}), 10, "needs");
  refused(with({"buzz", "-f", folder_ / "none"}), 11, "none");
  refused(with({"buzz", "-p", "x", "--seeds", "0"}), 2, "--seeds");
  refused(with({"buzz", "-p", words(900), "--quick", "--write", folder_ / "no" / "folder"}), 17,
          "folder");
}

}  // namespace
}  // namespace pith
