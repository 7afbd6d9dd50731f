// pith chat and run --chat: with the demo model, which has no template of its own, and on a
// terminal of 80 columns.

#include <poll.h>
#include <pty.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>
#include <utility>

#include "cli_harness.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::kModel;
using test::kProgram;
using test::read;
using test::Result;
using test::write;

/// The first number of every statistics line: tokens read for an answer.
std::vector<int> tokens_read(const std::string& text) {
  std::vector<int> out;
  const std::regex line(R"(\[(\d+) read)");
  for (std::sregex_iterator at(text.begin(), text.end(), line), end; at != end; ++at)
    out.push_back(std::stoi((*at)[1]));
  return out;
}

class CliChat : public test::Cli {
 protected:
  static std::vector<std::string> chat(std::vector<std::string> more = {}) {
    std::vector<std::string> all{
        "chat", "-m", kModel, "--chat-template", "chatml", "--temp", "0", "-n", "8", "-t", "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
};

TEST_F(CliChat, AModelWithoutATemplateIsRefusedWithAChoice) {
  refused({"chat", "-m", kModel}, 11, "chatml, llama3, mistral, gemma", "Hello\n");
  refused({"run", "-m", kModel, "--chat", "-p", "x"}, 11, "--chat-template");
  refused({"chat", "-m", kModel, "--chat-template", "alpaca"}, 11, "alpaca");
  refused({"run", "-m", kModel, "--chat-template", "chatml", "-p", "x"}, 10, "--chat");
  refused({"run", "-m", kModel, "--chat", "-i"}, 10, "pith chat");
  const std::string file = (folder_ / "bad.jinja").string();
  write(file, "a\n{% nosuch 'b' %}");
  refused({"chat", "-m", kModel, "--chat-template", file}, 13, "line 2");
  write(file, "a\n{% include 'b' %}");  // refused where it is reached
  const Result r = run({"run", "-m", kModel, "--chat", "-p", "x", "--chat-template", file});
  EXPECT_EQ(r.status, 13) << r.err;
  EXPECT_NE(r.err.find("line 2"), std::string::npos) << r.err;
}

TEST_F(CliChat, TalksSwitchesAndSaves) {
  const fs::path file = folder_ / "talk.json";
  const Result r = run(chat({"--system", "Be brief."}),
                       "Hello there\nAnd the ship?\n/policy streaming_llm(window=60),sink=4\n"
                       "And the quay?\n/save " +
                           file.string() + "\n/rows\n/nothing\n/rwos\n/quit\n");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("warning: the model's tokenizer has no token"), std::string::npos);
  EXPECT_NE(r.err.find("tokens again under it"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("There is no command /nothing; /help"), std::string::npos);
  EXPECT_NE(r.err.find("no command /rwos (did you mean '/rows'?); /help"), std::string::npos);
  EXPECT_NE(r.err.find("KV head"), std::string::npos) << "rows";
  const json saved = json::parse(read(file));
  ASSERT_EQ(saved["messages"].size(), 7u);
  EXPECT_EQ(saved["messages"][0]["content"], "Be brief.");
  EXPECT_EQ(saved["messages"][5]["content"], "And the quay?");
  EXPECT_EQ(saved["messages"][6]["role"], "assistant");
  const auto counts = tokens_read(r.err);
  ASSERT_EQ(counts.size(), 3u) << r.err;
  EXPECT_EQ(r.err.find("read anew"), std::string::npos) << "the cache goes on: " << r.err;
  EXPECT_LT(counts[1], counts[0] + 8) << "only what is new is read";

  // The same talk from the file: one message more, all of it read.
  const Result more = run(chat({"--history", file.string(), "-p", "Well?"}));
  EXPECT_EQ(more.status, 0) << more.err;
  ASSERT_EQ(tokens_read(more.err).size(), 1u);
  EXPECT_GT(tokens_read(more.err)[0], counts[0] + counts[1]);
  write(folder_ / "none.json", "{}");
  refused(chat({"--history", (folder_ / "none.json").string()}), 12, "list of messages");
}

TEST_F(CliChat, LoadsWhatItSavedAndReadsNothingAgain) {
  const std::string session = (folder_ / "talk.pith").string();
  const std::string messages = (folder_ / "talk.json").string();
  const std::string budget = "keydiff(budget=50%)+int8";
  const Result one =
      run(chat({"--kv-policy", budget}),
          "Hello there\n/session " + session + "\n/save " + messages + "\nAnd the ship?\n");
  ASSERT_EQ(one.status, 0) << one.err;
  // Another process, in the middle of another talk.
  const Result two = run(chat({"--kv-policy", budget}),
                         "/session " + session + "2\nSomething else\n/load " + session +
                             "\nAnd the ship?\n/load " + messages + "\nWell?\n/load\n/load " +
                             (folder_ / "none").string() + "\n");
  EXPECT_EQ(two.status, 0) << two.err;
  EXPECT_NE(two.err.find("no session to save"), std::string::npos) << two.err;
  EXPECT_NE(two.err.find("nothing is read again"), std::string::npos) << two.err;
  EXPECT_NE(two.err.find("/load needs"), std::string::npos) << two.err;
  const auto first = tokens_read(one.err), then = tokens_read(two.err);
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(then.size(), 3u) << two.err;
  EXPECT_EQ(then[1], first[1]) << "only what is new is read";
  EXPECT_GT(then[2], first[0]) << "messages are";
  // The answers are separated by line breaks; what follows the session is what followed in one
  // process.
  const std::string last = one.out.substr(one.out.find('\n', 1));
  EXPECT_NE(two.out.find(last), std::string::npos) << one.out << "\n---\n" << two.out;
  const Result other = run(chat({"--kv-policy", "exact", "--session-load", session}));
  EXPECT_EQ(other.status, 10);
  EXPECT_NE(other.err.find("its policy is"), std::string::npos) << other.err;
}

TEST_F(CliChat, OneMessageOfRunIsGoneOnWithInATalk) {
  const std::string session = (folder_ / "one.pith").string();
  const Result one = run({"run", "-m", kModel, "--chat", "--chat-template", "chatml", "--temp", "0",
                          "-n", "8", "-t", "1", "-q", "--kv-policy", "keydiff(budget=50%)", "-p",
                          "Where is the ship?", "--session-save", session});
  ASSERT_EQ(one.status, 0) << one.err;
  const Result more =
      run(chat({"--kv-policy", "keydiff(budget=50%)", "--session-load", session}), "And then?\n");
  EXPECT_EQ(more.status, 0) << more.err;
  EXPECT_EQ(more.err.find("read anew"), std::string::npos) << more.err;
}

TEST_F(CliChat, OneMessageAnswersAsTheTalkDoes) {
  const Result talk = run(chat({"-q"}), "Where is the ship?\n");
  const Result one = run({"run", "-m", kModel, "--chat", "--chat-template", "chatml", "--temp", "0",
                          "-n", "8", "-t", "1", "-q", "-p", "Where is the ship?"});
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_EQ(one.out, talk.out);
  EXPECT_EQ(one.out.find("Where"), std::string::npos) << "the answer alone";
}

TEST_F(CliChat, ResetForgetsAndMessagesMayHaveLines) {
  const Result r = run(chat(), "One\\\ntwo\n/reset\nOne\\\ntwo\n");
  const auto counts = tokens_read(r.err);
  ASSERT_EQ(counts.size(), 2u) << r.err;
  EXPECT_EQ(counts[0], counts[1]);
  const size_t half = r.out.size() / 2;
  EXPECT_EQ(r.out.substr(0, half), r.out.substr(half)) << "the same question, the same answer";
}

TEST_F(CliChat, AFullContextIsSaidAndTheTalkGoesOn) {
  const Result r = run(chat({"-c", "96"}), test::words(60) + "\nShort.\n");
  EXPECT_NE(r.err.find("The context of 96 tokens is full. /reset"), std::string::npos) << r.err;
  EXPECT_EQ(tokens_read(r.err).size(), 1u) << "the second message is answered: " << r.err;
}

TEST_F(CliChat, WrongCommandsEndNothing) {
  write(folder_ / "there", "mine");
  const Result r = run(chat(), "/policy keydif(budget=3)\n/save " + (folder_ / "there").string() +
                                   "\n/save\n/help\nHello\n");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("keydiff"), std::string::npos) << "a suggestion: " << r.err;
  EXPECT_NE(r.err.find("is there already"), std::string::npos) << r.err;
  EXPECT_EQ(read(folder_ / "there"), "mine");
  EXPECT_EQ(tokens_read(r.err).size(), 1u);
}

/// The line editor writes this when it has the terminal and begins to read: pastes are to be
/// marked.
const std::string kReady = "\x1B[?2004h";

/// The program on a terminal of 80 by 24, as someone sits before it.
class Terminal {
 public:
  explicit Terminal(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), kProgram);
    std::vector<char*> raw;
    for (std::string& a : arguments) raw.push_back(a.data());
    raw.push_back(nullptr);
    winsize size{};
    size.ws_row = 24, size.ws_col = 80;
    pid_ = forkpty(&file_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      setenv("TERM", "xterm", 1);
      execv(kProgram.c_str(), raw.data());
      _exit(127);
    }
  }
  ~Terminal() {
    close(file_);
    if (pid_ > 0) {  // a test that failed leaves it waiting
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys) const {
    EXPECT_EQ(::write(file_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }
  /// Reads until `words` have come since the last call.
  bool expect(const std::string& words, int seconds = 60) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    for (;;) {
      if (const size_t at = fresh_.find(words); at != std::string::npos) {
        fresh_.erase(0, at + words.size());
        return true;
      }
      pollfd wait{file_, POLLIN, 0};
      if (std::chrono::steady_clock::now() > end) return false;
      if (poll(&wait, 1, 200) <= 0) continue;
      char piece[4096];
      const ssize_t got = ::read(file_, piece, sizeof piece);
      if (got <= 0) return false;
      fresh_.append(piece, static_cast<size_t>(got));
    }
  }
  void kill_with(int signal) { kill(pid_, signal); }
  int status() {
    int status = 0;
    waitpid(std::exchange(pid_, 0), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  const std::string& seen() const { return fresh_; }

 private:
  pid_t pid_ = 0;
  int file_ = -1;
  std::string fresh_;
};

TEST_F(CliChat, ATerminalHasEditingHistoryAndPaste) {
  const fs::path file = folder_ / "talk.json";
  Terminal terminal(chat());
  ASSERT_TRUE(terminal.expect("/help shows the commands")) << terminal.seen();
  if (!terminal.expect(kReady, 20) && terminal.seen().ends_with("> "))
    GTEST_SKIP() << "this build has no libedit";
  terminal.type("/help\r");  // as it says, and within 80 columns
  ASSERT_TRUE(terminal.expect("begins another line; what is\r\npasted")) << terminal.seen();
  ASSERT_TRUE(terminal.expect(kReady));
  terminal.type("Hexlo\x1B[D\x1B[D\x7Fl\r");  // left twice, rub out the x, put an l
  ASSERT_TRUE(terminal.expect(" read")) << terminal.seen();
  ASSERT_TRUE(terminal.expect(kReady));
  terminal.type("\x1B[200~two\rl\xC3\xADnes\x1B[201~\r");
  ASSERT_TRUE(terminal.expect(" read")) << terminal.seen();
  ASSERT_TRUE(terminal.expect(kReady));
  terminal.type("\x1B[A\r");  // the last message again
  ASSERT_TRUE(terminal.expect(" read")) << terminal.seen();
  ASSERT_TRUE(terminal.expect(kReady));
  terminal.type("half a line");
  ASSERT_TRUE(terminal.expect("line"));  // Ctrl-C throws away what was not read yet
  terminal.type("\x03");                 // and clears what was
  ASSERT_TRUE(terminal.expect(kReady)) << terminal.seen();
  terminal.type("/save " + file.string() + "\r");
  ASSERT_TRUE(terminal.expect("Wrote 6 messages")) << terminal.seen();
  ASSERT_TRUE(terminal.expect(kReady));
  terminal.type("\x04");  // Ctrl-D
  EXPECT_EQ(terminal.status(), 0);
  const json saved = json::parse(read(file));
  EXPECT_EQ(saved["messages"][0]["content"], "Hello");
  EXPECT_EQ(saved["messages"][2]["content"], "two\nl\xC3\xADnes");
  EXPECT_EQ(saved["messages"][4]["content"], "two\nl\xC3\xADnes");
}

TEST_F(CliChat, CtrlCStopsAnAnswerAndThenTheTalk) {
  std::vector<std::string> all = chat();
  all[8] = "100000";  // -n
  Terminal terminal(all);
  if (!terminal.expect(kReady, 20) && terminal.seen().ends_with("> "))
    GTEST_SKIP() << "this build has no libedit";
  terminal.type("Tell me all\r");
  ASSERT_TRUE(terminal.expect("\x1B[?2004l"));
  ASSERT_TRUE(terminal.expect(" ")) << "an answer begins";
  std::this_thread::sleep_for(std::chrono::seconds(2));
  terminal.type("\x03");
  ASSERT_TRUE(terminal.expect("Stopped")) << terminal.seen();
  ASSERT_TRUE(terminal.expect(kReady)) << terminal.seen();
  terminal.type("\x03");  // on an empty line
  ASSERT_TRUE(terminal.expect("Ctrl-C again")) << terminal.seen();
  ASSERT_TRUE(terminal.expect(kReady)) << terminal.seen();
  terminal.type("\x03");
  EXPECT_EQ(terminal.status(), 130);
}

TEST_F(CliChat, WhatWasTypedIsDrawnAgainAfterFg) {
  Terminal terminal(chat());
  if (!terminal.expect(kReady, 20) && terminal.seen().ends_with("> "))
    GTEST_SKIP() << "this build has no libedit";
  terminal.type("half a line");
  ASSERT_TRUE(terminal.expect("line")) << terminal.seen();
  terminal.kill_with(SIGSTOP);
  terminal.kill_with(SIGCONT);
  ASSERT_TRUE(terminal.expect(kReady)) << terminal.seen();
  ASSERT_TRUE(terminal.expect("half a line")) << terminal.seen();
  terminal.type("\x15/bye\r");  // Ctrl-U clears the line
  EXPECT_EQ(terminal.status(), 0);
}

TEST_F(CliChat, SigtermEndsItAtOnce) {
  for (const char* typed : {"", "half a line", "Tell me all\r"}) {
    std::vector<std::string> all = chat();
    all[8] = "100000";  // -n
    Terminal terminal(all);
    if (!terminal.expect(kReady, 20) && terminal.seen().ends_with("> "))
      GTEST_SKIP() << "this build has no libedit";
    terminal.type(typed);
    std::this_thread::sleep_for(std::chrono::seconds(1));
    const auto start = std::chrono::steady_clock::now();
    terminal.kill_with(SIGTERM);
    EXPECT_EQ(terminal.status(), 143) << typed;
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(4)) << typed;
  }
}

}  // namespace
}  // namespace pith
