// Found by attacks on the program: files that are lost, waited for or damaged, streams that are
// closed or full, numbers that wrap. Each ended in a lost file, an abort, a hang or nonsense.

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli_harness.h"
#include "core/safetensors.h"
#include "device_node.h"

namespace pith {
namespace {

namespace fs = std::filesystem;
using test::Cli;
using test::kModel;
using test::read;
using test::Result;
using test::write;

class Attack : public Cli {
 protected:
  std::string pipe() const {
    mkfifo(file("pipe").c_str(), 0600);
    return file("pipe");
  }
  std::string giant() const {
    write(folder_ / "giant", "");
    EXPECT_EQ(truncate(file("giant").c_str(), off_t{64} << 30), 0);
    return file("giant");
  }
  /// q [1, 4, 16], k and v [1, 8, 16].
  std::string tensors(float q) const {
    const std::vector<float> queries(64, q), rows(128, 0.5f);
    write_safetensors(file("in.safetensors"),
                      {{{"q", TensorType::kF32, {1, 4, 16}}, queries.data()},
                       {{"k", TensorType::kF32, {1, 8, 16}}, rows.data()},
                       {{"v", TensorType::kF32, {1, 8, 16}}, rows.data()}});
    return file("in.safetensors");
  }
  std::vector<std::string> tasks_to(const std::string& out) const {
    return {"eval",    "tasks", "-m", kModel, "--samples", "1",
            "--turns", "1",     "-c", "256",  "-o",        out};
  }
  void ends_within(pid_t pid, std::chrono::seconds limit, int status) {
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(finish(pid).status, status);
    EXPECT_LT(std::chrono::steady_clock::now() - start, limit);
  }
};

TEST_F(Attack, OutputsGoThroughPipesAndLinks) {
  fs::create_symlink("real", folder_ / "link");
  EXPECT_EQ(run({"attend", "--tensors", tensors(1), "-o", file("link")}).status, 0);
  EXPECT_TRUE(fs::is_symlink(folder_ / "link"));
  EXPECT_TRUE(fs::is_regular_file(folder_ / "real"));
  pipe();
  const Result r = shell("cat pipe >copy & $PITH logits -m $MODEL --ids 1,2 -o pipe; wait");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(fs::is_fifo(folder_ / "pipe"));
  EXPECT_EQ(SafeTensors::open(folder_ / "copy").at("ids").count(), 2u);
  if (const std::string null = test::device_node(folder_, test::kNull); !null.empty()) {
    EXPECT_EQ(run({"logits", "-m", kModel, "--ids", "1", "-o", null}).status, 0);
    EXPECT_TRUE(fs::is_character_file(null));
  }
}

TEST_F(Attack, ResultsNeverReplaceWhatTheyDoNotKnow) {
  write(folder_ / "diary", "dear diary");  // without an end of line
  refused(tasks_to(file("diary")), 12, "is not a result of pith eval");
  refused({"eval", "ppl", "-m", kModel, "-f", file("diary"), "-c", "16", "-o", file("diary")}, 12,
          "is not a result of pith eval");
  EXPECT_EQ(read(folder_ / "diary"), "dear diary");
  fs::create_directory(folder_ / "folder");
  refused(tasks_to(file("folder")), 17, "a folder");
  refused(tasks_to(pipe()), 17, "a pipe");
  refused(tasks_to("/dev/zero"), 17, "a device");
  write(folder_ / "numbers", "{\"key\":5}\n");
  refused(tasks_to(file("numbers")), 12, "line 1 is not a result");

  const std::string line = R"({"key":"a","kind":"ppl"})";
  write(folder_ / "r.jsonl", line + "\n");
  refused({"report", file("r.jsonl"), "-o", file("r.jsonl")}, 10, "cannot be the output too");
  EXPECT_EQ(read(folder_ / "r.jsonl"), line + "\n");
  const std::string in = tensors(1), bytes = read(in);
  refused({"attend", "--tensors", in, "-o", in}, 10, "cannot be the output too");
  EXPECT_EQ(read(in), bytes);
  write(folder_ / "old.csv", "old");
  refused({"probe", "-m", kModel, "-p", "x", "--csv", file("old.csv"), "--kv-policy", "nonsense"},
          10, "unknown method");
  EXPECT_EQ(read(folder_ / "old.csv"), "old");
}

TEST_F(Attack, ResultsOfWrongTypesAreDamaged) {
  EXPECT_EQ(run(tasks_to(file("r.jsonl"))).status, 0);
  auto record = nlohmann::ordered_json::parse(read(folder_ / "r.jsonl"));
  record["score"] = "good";
  write(folder_ / "r.jsonl", record.dump() + "\n");
  refused(tasks_to(file("r.jsonl")), 12, "r.jsonl");
}

TEST_F(Attack, StandardErrorMayBeClosedOrFull) {
  for (const char* err : {"2>&-", "2>/dev/full"}) {
    EXPECT_EQ(shell(std::string("$PITH run -m $MODEL -p x -n 2 ") + err).status, 0) << err;
    EXPECT_EQ(shell(std::string("$PITH run -m nowhere -p x ") + err).status, 11) << err;
    EXPECT_EQ(shell(std::string("$PITH nonsense ") + err).status, 2) << err;
  }
  // A closed stream's number must not become the output file's.
  EXPECT_EQ(shell("$PITH logits -m $MODEL --ids 1 -o f 2>&- >&-").status, 17);
  for (const char* help : {"--help", "run --help", "--version", "policies"})
    EXPECT_EQ(shell(std::string("$PITH ") + help + " >/dev/full").status, 17) << help;
}

// systemd's MemoryDenyWriteExecute: oneDNN cannot make its kernels, and prompts of 9 tokens failed.
TEST_F(Attack, PromptsAreReadWhereCodeMayNotBeMade) {
#ifndef PR_SET_MDWE
  constexpr int kDenyWriteExecute = 65;
#else
  constexpr int kDenyWriteExecute = PR_SET_MDWE;
#endif
  const std::string command =
      "$PITH run -m $MODEL -p \"The old house stood by the sea and the wind was strong\" -n 8 -q "
      "--temp 0";
  const Result free = shell(command);
  const pid_t child = fork();
  if (child == 0) {
    const bool denied = prctl(kDenyWriteExecute, 1, 0, 0, 0) == 0;
    const Result bound = shell(command);
    _exit(!denied ? 77 : bound.status == 0 && bound.out == free.out ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this kernel does not know PR_SET_MDWE";
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_NE(free.out, "");
}

// Pages of a mapped file that is cut are gone: SIGBUS.
TEST_F(Attack, AModelThatIsCutWhileInUseNamesTheCause) {
  const Result r = shell(
      "cp -rL $MODEL copy; chmod -R u+w copy; mkfifo lines; "
      "$PITH run -m copy -i -n 1 -t 1 --no-check-weights <lines & pid=$!; exec 3>lines; "
      "echo Once >&3; until [ -s out ]; do sleep 0.1; done; : >copy/model.safetensors; "
      "echo again >&3; exec 3>&-; wait $pid");
  EXPECT_EQ(r.status, 17) << r.err;
  EXPECT_EQ(r.err,
            "pith: error: a mapped file was cut while in use, or its disk fails: run again\n");
}

TEST_F(Attack, AReaderThatGoesEndsTheProgramQuietly) {
  const Result r = shell("$PITH policies | head -1; exit ${PIPESTATUS[0]}");
  EXPECT_TRUE(r.status == 141 || r.status == 0) << r.status;  // 0: all of it fitted the pipe
  EXPECT_EQ(r.err, "");
  const Result run = shell(
      "$PITH run -m $MODEL -p x -n 100000 -c 200000 --kv-policy local --ignore-eos -q | head -c 9; "
      "exit ${PIPESTATUS[0]}");
  EXPECT_EQ(run.status, 141);
  EXPECT_EQ(run.err.find("error"), std::string::npos) << run.err;
}

TEST_F(Attack, NumbersThatMakeNoSenseAreRefused) {
  const auto wrong = [&](const std::string& option, const std::string& value, int status) {
    const Result r = run({"run", "-m", kModel, "-p", "x", "-n", "1", option, value});
    EXPECT_EQ(r.status, status) << option << " " << value << ": " << r.err;
    EXPECT_NE(r.err.find(option), std::string::npos) << r.err;
  };
  for (const char* option : {"--kv-seed", "--attn-error-probe"}) wrong(option, "-1", 2);
  for (const char* option : {"--kv-seed", "--seed"}) wrong(option, "18446744073709551616", 2);
  wrong("--seed", "-2", 2);  // -1 draws one, as llama.cpp's does
  for (const char* option : {"--memory-limit", "--max-attn-error"}) wrong(option, "nan", 2);
  wrong("--kv-budget", "", 2);
  refused({"run", "-m", kModel, "-p", "x", "--attn-error-probe", "99999999999999"}, 10, "rows");
  refused({"attend", "--tensors", tensors(1), "--rope-theta", "nan", "-o", file("o")}, 2, "nan");
}

TEST_F(Attack, ScoresBeyondFloatsAreRefused) {
  refused({"attend", "--tensors", tensors(1e38f), "-o", file("o")}, 16, "scores beyond");
  refused({"attend", "--tensors", tensors(1e38f), "--causal", "-o", file("o")}, 10, "--causal");
  EXPECT_EQ(run({"attend", "--tensors", tensors(1e18f), "-o", file("o")}).status, 0);
}

TEST_F(Attack, ThreadsThatTheSystemRefusesAreSaid) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer needs more address space than a limit leaves";
#endif
  // Each thread wants 8 MiB of stack to be set aside.
  const Result r = shell("ulimit -v 1200000; $PITH run -m $MODEL -p x -n 1 -t 512");
  EXPECT_EQ(r.status, 14) << r.err;
  EXPECT_NE(r.err.find("use fewer (-t)"), std::string::npos) << r.err;
}

TEST_F(Attack, DeepJsonIsDamagedJson) {
  const std::string deep = std::string(80000, '[') + std::string(80000, ']');
  const std::string object = "{\"architectures\":" + deep + "}";
  refused({"run", "-m", damaged("config.json", object).string(), "-p", "x"}, 12, "nested");
  write(folder_ / "ids", deep);
  refused({"tokenize", "-m", kModel, "--ids", file("ids")}, 12, "nested");
  uint64_t length = object.size();
  write(folder_ / "deep.safetensors",
        std::string(reinterpret_cast<const char*>(&length), 8) + object);
  refused({"attend", "--tensors", file("deep.safetensors"), "-o", file("o")}, 12, "nested");
}

TEST_F(Attack, PipesDevicesAndGiantsAreRefusedAtOnceInAModelFolder) {
  pipe(), giant();
  fs::create_symlink("loop", folder_ / "loop");
  fs::create_directory(folder_ / "folder");
  for (const char* name :
       {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"}) {
    const fs::path model = damaged(name, "");
    for (const std::string& what :
         {file("pipe"), std::string("/dev/zero"), file("giant"), file("loop"), file("folder")}) {
      fs::remove(model / name);
      fs::create_symlink(what, model / name);
      const Result r = run({"run", "-m", model.string(), "-p", "x", "-n", "1"});
      const bool mapped = what == file("giant") && std::string(name) == "model.safetensors";
      EXPECT_EQ(r.status, mapped ? 12 : 17) << name << " " << what << ": " << r.err;
      EXPECT_NE(r.err.find(name), std::string::npos) << r.err;
    }
    fs::remove_all(model);
  }
}

TEST_F(Attack, PipesDevicesAndGiantsAreRefusedAtOnceAsOtherInputs) {
  const std::vector<std::vector<std::string>> commands{
      {"report"},
      {"eval", "tasks", "-m", kModel, "-c", "256", "--file"},
      {"run", "-m", kModel, "-p", "x", "--kv-policy", "auto", "--kv-budget", "25%", "--presets"},
      {"attend", "-o", file("o"), "--tensors"}};
  for (const auto& command : commands)
    for (const std::string& what : {pipe(), std::string("/dev/zero"), giant()}) {
      auto all = command;
      all.push_back(what);
      const bool mapped = command[0] == "attend" && what == file("giant");
      EXPECT_EQ(run(all).status, mapped ? 12 : 17) << command[0] << " " << what;
    }
  refused({"run", "-m", kModel, "-n", "1", "-f", "/dev/zero"}, 17, "a device");
  refused({"run", "-m", kModel, "-n", "1", "-f", giant()}, 17, "68719476736 bytes");
  refused({"run", "-m", kModel, "-p", "x", "--kv-policy", "exact+csr(s=8,dict=" + pipe() + ")"}, 17,
          "a pipe");
}

TEST_F(Attack, SignalsEndTheWaitForAPipe) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const pid_t pid = start({"run", "-m", kModel, "-f", pipe()});
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    kill(pid, signal);
    ends_within(pid, std::chrono::seconds(5), signal == SIGINT ? 130 : 143);
  }
}

TEST_F(Attack, UnknownWordsAreNamedWithTheNearest) {
  refused({"sreve", "-m", "x"}, 2, "there is no command 'sreve' (did you mean 'serve'?); see");
  refused({"summarise"}, 2, "there is no command 'summarise'; commands: ask, attend, bench");
  refused(
      {"session", "tokesn", "x"}, 2,
      "there is no command 'session tokesn' (did you mean 'tokens'?); see 'pith session --help'");
  refused({"bench", "nothing"}, 2, "there is no command 'bench nothing'; commands: ");
  const auto option = [&](const std::string& word, const std::string& near) {
    const std::vector<std::string> run{"run", "-m", kModel, "-p", "x", word};
    refused(run, 2, "there is no option '" + word.substr(0, word.find('=')) + "'" + near + "; see");
  };
  option("--tempp", " (did you mean '--temp'?)");
  option("--kv-polcy=exact", " (did you mean '--kv-policy'?)");
  option("--no-such-thing", "");
  refused({"eval", "ppl", "-m", kModel, "--fiel", "x"}, 2,
          "(did you mean '--file'?); see 'pith eval");
  refused({"pull", "smolm2"}, 11,
          "no model has the name 'smolm2' (did you mean 'smollm2'?); there");
}

// CLI11 made -1 of the flag's 0, which stands for "as the tokenizer says".
TEST_F(Attack, NoBosPutsNoneInFront) {
  const Result with = run({"tokenize", "-m", kModel, "-p", "hello"});
  const Result without = run({"tokenize", "-m", kModel, "-p", "hello", "--no-bos"});
  EXPECT_EQ(with.out.rfind("[0, ", 0), 0u) << with.out;
  EXPECT_EQ("[0, " + without.out.substr(1), with.out);
  EXPECT_EQ(run({"tokenize", "-m", kModel, "-p", "hello", "--bos"}).out, with.out);
}

// An ESC in a name or a message could type for the user.
TEST_F(Attack, ControlCharactersOfFilesAreShownNotSent) {
  const Result r = shell("$PITH run -m $(printf \"no\\033[2Jwhere\\302\\233\") -p x");
  EXPECT_EQ(r.status, 11);
  EXPECT_NE(r.err.find("no\\x1b[2Jwhere\\u009b"), std::string::npos) << r.err;
  EXPECT_EQ(r.err.find('\x1B'), std::string::npos);
}

TEST_F(Attack, AFullFileSizeIsAnErrorOfTheWrite) {
  const Result r = shell("ulimit -f 1; $PITH logits -m $MODEL --ids 1,2,3,4 -o big; echo $?; ls");
  EXPECT_NE(r.out.find("17"), std::string::npos) << r.out << r.err;
  EXPECT_EQ(r.out.find("big"), std::string::npos) << r.out;
}

TEST_F(Attack, TheFirstCtrlCEndsTokenizeAndBench) {
  write(folder_ / "long.txt", test::words(6000000));
  const pid_t tokenize = start({"tokenize", "-m", kModel, "-f", file("long.txt")});
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  kill(tokenize, SIGINT);
  ends_within(tokenize, std::chrono::seconds(3), 130);
  const pid_t bench = start({"bench", "-m", kModel, "-d", "2000", "-r", "1000"});
  std::this_thread::sleep_for(std::chrono::seconds(2));
  kill(bench, SIGINT);
  ends_within(bench, std::chrono::seconds(3), 130);
}

TEST_F(Attack, ALongTextTakesAFewTimesItsSize) {
  std::string text = test::words(300000);
  while (text.size() < (16u << 20)) text += text;
  write(folder_ / "long.txt", text);
  const auto peak = [&](std::vector<std::string> more) {
    more.insert(more.begin(), {"tokenize", "-m", kModel});
    int status = 0;
    rusage used{};
    EXPECT_GT(wait4(start(more), &status, 0, &used), 0);
    EXPECT_EQ(status, 0);
    return static_cast<size_t>(used.ru_maxrss) * 1024;
  };
  // It was 47 times: the text, its words and ids were all held at once, each in a form of its own.
  EXPECT_LT(peak({"-f", file("long.txt")}), peak({"-p", "x"}) + 20 * text.size());
}

TEST_F(Attack, ATextThatCannotFitIsRefusedByItsBytes) {
  std::string text = test::words(300000);
  while (text.size() < (40u << 20)) text += text;
  write(folder_ / "long.txt", text);
  const std::string size = std::to_string(text.size()) + " bytes";
  for (const char* form : {"-f", "--chat"}) {
    std::vector<std::string> all{"run", "-m", kModel, "-f", file("long.txt"), "-n", "1"};
    if (form == std::string("--chat"))
      all.insert(all.end(), {"--chat", "--chat-template", "chatml"});
    const Result r = run(all);
    EXPECT_EQ(r.status, 15) << form;
    EXPECT_EQ(r.out, "") << form;
    EXPECT_NE(r.err.find("a text of "), std::string::npos) << r.err;
  }
  const Result asked =
      run({"ask", file("long.txt"), "-m", kModel, "-q", "Who?", "--chat-template", "chatml"});
  EXPECT_EQ(asked.status, 15);
  EXPECT_NE(asked.err.find("a text of "), std::string::npos) << asked.err;
  // A few tokens too many are no text that bytes refuse; it is not shown either.
  write(folder_ / "few.txt", test::words(9000));
  const Result few = run({"run", "-m", kModel, "-f", file("few.txt"), "-n", "1"});
  EXPECT_EQ(few.status, 15);
  EXPECT_EQ(few.out, "");
  EXPECT_NE(few.err.find("tokens after the 0 already seen"), std::string::npos) << few.err;
  // A conversation goes on after the line, which was quadratic to read.
  const Result talk =
      run({"run", "-m", kModel, "-i", "-n", "2", "--temp", "0"}, text + "\nThe ship\n");
  EXPECT_EQ(talk.status, 0) << talk.err;
  EXPECT_NE(talk.err.find(size), std::string::npos) << talk.err;
  EXPECT_GT(talk.out.size(), 1u);
}

TEST_F(Attack, NamesAndSizesAreReadAsTheyAreMeant) {
  refused({"run", "-m", kModel, "-p", "x", "--kv-policy", "SnapKV"}, 10, "snapkv");
  EXPECT_EQ(run({"help"}).out, run({"--help"}).out);
  EXPECT_EQ(run({"help", "run"}).out, run({"run", "--help"}).out);
  const Result one = run({"policies", "snapkv"});
  EXPECT_EQ(one.status, 0);
  EXPECT_NE(one.out.find("budget"), std::string::npos);
  EXPECT_EQ(one.out.find("keydiff"), std::string::npos);
  refused({"policies", "snapk"}, 10, "snapkv");
  const auto inspect = [&](const std::string& budget) {
    return run({"inspect", "-m", kModel, "--kv-policy", "keydiff", "--kv-budget", budget}).status;
  };
  EXPECT_EQ(inspect("4MB"), 0);
  EXPECT_EQ(inspect("4MiB"), 0);
  EXPECT_EQ(inspect("4mb"), 10);
}

}  // namespace
}  // namespace pith
