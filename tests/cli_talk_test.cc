// The commands of a talk: taking back, answering again, other settings; and pith template.

#include <nlohmann/json.hpp>
#include <regex>

#include "cli_harness.h"

namespace pith {
namespace {

using nlohmann::json;
using test::kModel;
using test::read;
using test::Result;
using test::write;

class CliTalk : public test::Cli {
 protected:
  /// Lines of a talk, at temperature 0 if not told otherwise.
  Result talk(const std::string& lines, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"chat", kModel, "--chat-template", "chatml", "--temp", "0", "-n", "8", "-t", "1"});
    return run(more, lines);
  }
  /// The messages at the end of a talk.
  json messages_after(const std::string& lines) {
    const Result r = talk(lines + "/save " + file("talk.json") + "\n");
    EXPECT_EQ(r.status, 0) << r.err;
    const json out = json::parse(read(folder_ / "talk.json"))["messages"];
    std::filesystem::remove(folder_ / "talk.json");
    return out;
  }
  static bool says(const Result& r, const std::string& words) {
    return r.err.find(words) != std::string::npos;
  }
};

TEST_F(CliTalk, UndoTakesTheLastMessageBack) {
  const json one = messages_after("Hello there\n");
  ASSERT_EQ(one.size(), 2u);
  EXPECT_EQ(messages_after("Hello there\nAnd the ship?\n/undo\n"), one);
  // The talk goes on as if it had not been.
  EXPECT_EQ(messages_after("Hello there\nAnd the ship?\n/undo\nAnd the quay?\n"),
            messages_after("Hello there\nAnd the quay?\n"));
  const Result r = talk("/undo\nHello\n/undo\n/undo\n");
  EXPECT_TRUE(says(r, "pith: error: there is no message to take back")) << r.err;
  EXPECT_TRUE(says(r, "Took back the last message; 0 messages stay")) << r.err;
  EXPECT_EQ(messages_after("Hello\n/clear\nHello there\n"), one);
}

TEST_F(CliTalk, RetryAnswersAgainWithTheNextSeed) {
  const auto last = [&](const std::string& lines) {
    const auto messages = messages_after("/set temp 1.5\n/set top-k 0\n" + lines);
    return messages.back().at("content").get<std::string>();
  };
  const std::string first = last("Hello there\n"), second = last("Hello there\n/retry\n");
  EXPECT_NE(second, first);
  EXPECT_EQ(second, last("/set seed 1\nHello there\n"));
  EXPECT_EQ(messages_after("Hello there\n/retry\n").size(), 2u);
  const Result r = talk("/retry\nHello\n/retry\n");
  EXPECT_TRUE(says(r, "no message of plain text")) << r.err;
  EXPECT_TRUE(says(r, "At a temperature of 0 the answer is the same")) << r.err;
  // A question that no longer fits leaves its first answer.
  EXPECT_EQ(messages_after("Hello\n/set seed x\n/set tempp 1\n").size(), 2u);
}

TEST_F(CliTalk, SystemPromptsChangeInATalk) {
  const json with = messages_after("Hello\n/system Be brief.\nAnd the ship?\n");
  ASSERT_EQ(with.size(), 5u);
  EXPECT_EQ(with[0], json({{"role", "system"}, {"content", "Be brief."}}));
  EXPECT_EQ(messages_after("/system Be brief.\nHello\n"),
            messages_after("/set system Be brief.\nHello\n"));
  const json empty = messages_after("/system Be brief.\n/system ''\nHello\n");
  EXPECT_EQ(empty[0]["content"], "");
  const Result r = talk("/system\n/system Be brief.\n/system\nHello\n");
  EXPECT_TRUE(says(r, "\"Be brief.\"")) << r.err;
  // It is read: the prompt is longer.
  const std::regex count(R"(\[(\d+) read)");
  std::smatch given, none;
  const std::string without = talk("Hello\n").err;
  ASSERT_TRUE(std::regex_search(r.err, given, count));
  ASSERT_TRUE(std::regex_search(without, none, count));
  EXPECT_GT(std::stoi(given[1]), std::stoi(none[1]));
}

TEST_F(CliTalk, SettingsAreNamedAsOptions) {
  const Result r = talk("/set --top_k 5\n/set temperature=0.5\n/set parameter n 2\n/set\nHello\n");
  EXPECT_TRUE(std::regex_search(r.err, std::regex("\n\\[\\d+ read, 2 written [^\n]*\\]\n$")))
      << "a line, and the last: " << r.err;
  EXPECT_TRUE(says(r, "temp 0.5, top-k 5, top-p 0.95")) << r.err;
  EXPECT_TRUE(says(r, ", 2 written")) << r.err;
  const Result wrong = talk(
      "/set tempp 1\n/set temp warm\n/set temp -1\n/set n -2\n/set top-p 2\n/set seed -1\n/set\n");
  EXPECT_EQ(wrong.status, 0);
  EXPECT_TRUE(says(wrong, "/set has no 'tempp' (did you mean 'temp'?)")) << wrong.err;
  EXPECT_TRUE(says(wrong, "/set temp: 'warm' is not a number")) << wrong.err;
  EXPECT_EQ(std::count(wrong.err.begin(), wrong.err.end(), '\n'), 1 + 6 + 1)
      << "each is refused, and nothing changes: " << wrong.err;
  EXPECT_TRUE(says(wrong, "temp 0, top-k 40, top-p 0.95")) << wrong.err;
}

TEST_F(CliTalk, AWordOrABudgetAloneIsAuto) {
  const auto autos = [](const Result& r) {
    size_t count = 0;
    for (size_t at = 0; (at = r.err.find("pith: auto: ", at)) != std::string::npos; ++at) ++count;
    return count;
  };
  const Result r = talk(
      "Hello\n/policy quarter\n/policy 30%\n/policy auto\n/policy auto half\n"
      "/policy exact+int8\nAnd then?\n",
      {"--kv-budget", "60%", "--no-screen", "-c", "4096"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(autos(r), 5u) << r.err;
  EXPECT_TRUE(says(r, "tokens again under it")) << r.err;
  EXPECT_EQ(talk("/policy quarter\n/policy auto 25%\n/policy auto\n", {"--no-screen", "-q"})
                .err.find("pith: error"),
            std::string::npos);
  const Result small = talk("/policy 0.01%\nHello\n", {"--no-screen", "-c", "4096"});
  EXPECT_TRUE(says(small, "below the least")) << small.err;
  EXPECT_EQ(small.status, 0) << "the talk goes on";

  write(folder_ / "tale.txt", test::words(50));
  const std::vector<std::string> budget{"-m", kModel, "--kv-budget", "50%", "--no-screen"};
  for (std::vector<std::string> command :
       {std::vector<std::string>{"run", "-p", "x", "-n", "1"},
        {"bench", "-p", "3", "-n", "2", "-d", "0", "-r", "1"},
        {"ask", file("tale.txt"), "-q", "Where?", "-n", "2", "--chat-template", "chatml"}}) {
    command.insert(command.end(), budget.begin(), budget.end());
    const Result one = run(command);
    EXPECT_EQ(one.status, 0) << one.err;
    EXPECT_EQ(autos(one), 1u) << command[0] << ": " << one.err;
  }
}

TEST_F(CliTalk, HelpHasLinesOf80Columns) {
  const Result r = talk("/help\n");
  const std::string help = r.err.substr(r.err.find("  /clear"));
  EXPECT_TRUE(says(r, "/retry") && says(r, "/system") && says(r, "/bye")) << r.err;
  for (size_t at = 0, end = 0; at < help.size(); at = end + 1) {
    end = help.find('\n', at);
    EXPECT_LE(end - at, 80u) << help.substr(at, end - at);
  }
}

TEST_F(CliTalk, HistoryIsSaid) {
  write(folder_ / "h.json",
        R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hello"},)"
        R"({"role":"assistant","content":"Hi."}])");
  const Result r = talk("And then?\n", {"--history", file("h.json")});
  EXPECT_EQ(r.status, 0);
  EXPECT_TRUE(says(r, "h.json: 3 messages (1 of system, 1 of user, 1 of assistant), read with"))
      << r.err;
  EXPECT_EQ(talk("And then?\n", {"--history", file("h.json"), "-q"}).err.find("3 messages"),
            std::string::npos);
  // --system is not forgotten.
  const Result other = talk("/system\n", {"--history", file("h.json"), "--system", "Be long."});
  EXPECT_TRUE(says(other, "\"Be long.\"")) << other.err;
  write(folder_ / "bad.json", R"([{"content":"no role"}])");
  refused({"chat", kModel, "--history", file("bad.json")}, 12, "each with a \"role\"");
}

TEST_F(CliTalk, IntegersOfMoreThan64BitsAreRefusedNotRounded) {
  const auto history = [&](const std::string& integer) {
    write(folder_ / "h.json", R"([{"role":"user","content":"12345678901234567890123"},)"
                              R"({"role":"assistant","tool_calls":[{"function":{"name":"f",)"
                              R"("arguments":{"n":)" +
                                  integer + "}}}]}]");
    return std::vector<std::string>{"template", "-m",        kModel,        "--chat-template",
                                    "chatml",   "--history", file("h.json")};
  };
  for (const char* wide : {"18446744073709551616", "-9223372036854775809", "100000000000000000000"})
    refused(history(wide), 10, std::string("the integer ") + wide + " has more than 64 bits");
  for (const char* fits : {"9223372036854775807", "-9223372036854775808", "1e30"})
    EXPECT_EQ(run(history(fits)).status, 0) << fits;
  const auto schema = [&](const std::string& integer) {
    write(folder_ / "s.json", R"({"enum":[)" + integer + "]}");
    return std::vector<std::string>{"run",
                                    "-m",
                                    kModel,
                                    "-p",
                                    "x",
                                    "--temp",
                                    "0",
                                    "-q",
                                    "--no-display-prompt",
                                    "--json-schema-file",
                                    file("s.json")};
  };
  refused(schema("18446744073709551616"), 10, "JSON schema: the integer 18446744073709551616");
  EXPECT_EQ(run(schema("18446744073709551615")).out, "18446744073709551615\n");
}

TEST_F(CliTalk, TheErrorProbesFigureHasAWord) {
  const Result r = talk(test::words(60) + "\n/set n 40\nAnd then?\n",
                        {"--kv-policy", "local(window=8)", "--attn-error-probe", "64"});
  EXPECT_EQ(r.status, 0) << r.err;
  std::string flat = std::regex_replace(r.err, std::regex("\\n "), " ");
  std::smatch error;
  ASSERT_TRUE(std::regex_search(
      flat, error, std::regex(R"(attention error (0\.\d\d): (tiny|small|medium|large)\])")))
      << r.err;
  const double value = std::stod(error[1]);
  EXPECT_EQ(error[2], value < 0.01   ? "tiny"
                      : value < 0.1  ? "small"
                      : value < 0.25 ? "medium"
                                     : "large");
  EXPECT_EQ(talk("Hello\n").err.find("attention error"), std::string::npos);
}

TEST_F(CliTalk, APromptFilesLastLineBreakIsNoPartOfIt) {
  const std::string want = talk("", {"-p", "Hello there"}).out;
  for (const char* text : {"Hello there", "Hello there\n", "Hello there\r\n"}) {
    write(folder_ / "prompt", text);
    EXPECT_EQ(talk("", {"-f", file("prompt")}).out, want);
    EXPECT_EQ(run({"run", "-m", kModel, "-f", file("prompt"), "-n", "1", "-q", "--json"})
                  .out.find("\"tokens\": 0"),
              std::string::npos);
  }
}

TEST_F(CliTalk, TemplateShowsThePromptAndItsTokens) {
  const std::vector<std::string> base{"template", "-m", kModel, "--chat-template", "chatml"};
  const auto with = [&](std::vector<std::string> more, const std::string& input = "") {
    more.insert(more.begin(), base.begin(), base.end());
    const Result r = run(more, input);
    EXPECT_EQ(r.status, 0) << r.err;
    return r.out;
  };
  const std::string text = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  const json j = json::parse(with({"-p", "Hi", "--json"}));
  EXPECT_EQ(j["text"], text);
  EXPECT_EQ(j["count"], j["ids"].size());
  const Result read_back = run({"run", "-m", kModel, "--chat", "--chat-template", "chatml", "-p",
                                "Hi", "-n", "1", "--json"});
  EXPECT_EQ(j["count"], json::parse(read_back.out)["prompt"]["tokens"]);
  std::string pieces;
  for (const json& piece : j["pieces"]) pieces += std::string(piece);
  EXPECT_NE(pieces.find("Hi"), std::string::npos);
  const std::string shown = with({}, "Hi\r\n");
  EXPECT_TRUE(shown.starts_with(text + "\n" + std::to_string(j["ids"].size()) +
                                " tokens: " + std::to_string(int(j["ids"][0])) + ", "))
      << shown;
  const std::string table = with({"-p", "Hi", "--pieces"});
  EXPECT_EQ(static_cast<size_t>(std::count(table.begin(), table.end(), '\n')), j["ids"].size() + 2);
  EXPECT_EQ(json::parse(with({"-p", "Hi", "--json", "--no-generation-prompt"}))["text"],
            "<|im_start|>user\nHi<|im_end|>\n");
  write(folder_ / "h.json",
        R"([{"role":"user","content":"A"},{"role":"assistant","content":"B"}])");
  EXPECT_EQ(
      json::parse(with({"--history", file("h.json"), "--json", "--no-generation-prompt"}))["text"],
      "<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n");
}

}  // namespace
}  // namespace pith
