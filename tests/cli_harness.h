#pragma once
// Shared by CLI tests: a temporary folder, and the program run in it as a person runs it.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "paths.h"

extern char** environ;

namespace pith::test {

namespace fs = std::filesystem;

inline const std::string kProgram = build_dir().string() + "/bin/pith";
inline const std::string kModel = repo_dir().string() + "/models/demo";

inline std::string read(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Text with some variety, about 1.3 tokens a word.
inline std::string words(int count) {
  const char* const kWords[] = {"the ship", "lay at",  "anchor and", "a man",
                                "stood on", "the old", "quay while", "rain fell"};
  std::string text;
  for (int i = 0; i < count; ++i) text += std::string(kWords[(i * i + i / 7) % 8]) + " ";
  return text;
}

struct Result {
  int status = -1;
  std::string out, err;
};

/// A temporary folder, and programs run in it.
class Cli : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/pith_cli_XXXXXX";
    folder_ = mkdtemp(name);
  }
  void TearDown() override { fs::remove_all(folder_); }

  pid_t start(std::vector<std::string> arguments, const std::string& input = "") {
    write(folder_ / "in", input);
    arguments.insert(arguments.begin(), kProgram);
    std::vector<char*> raw;
    for (std::string& a : arguments) raw.push_back(a.data());
    raw.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawn_file_actions_init(&files);
    const int fresh = O_CREAT | O_TRUNC | O_WRONLY;
    posix_spawn_file_actions_addopen(&files, 0, (folder_ / "in").c_str(), O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&files, 1, (folder_ / "out").c_str(), fresh, 0600);
    posix_spawn_file_actions_addopen(&files, 2, (folder_ / "err").c_str(), fresh, 0600);
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, kProgram.c_str(), &files, nullptr, raw.data(), environ), 0);
    posix_spawn_file_actions_destroy(&files);
    return pid;
  }
  Result finish(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status), read(folder_ / "out"),
            read(folder_ / "err")};
  }
  Result run(std::vector<std::string> arguments, const std::string& input = "") {
    return finish(start(std::move(arguments), input));
  }
  /// Expects an exit status and one sentence that holds `words`.
  void refused(std::vector<std::string> arguments, int status, const std::string& words,
               const std::string& input = "") {
    const Result r = run(std::move(arguments), input);
    EXPECT_EQ(r.status, status) << r.err;
    EXPECT_TRUE(r.err.starts_with("pith: error: ")) << r.err;
    EXPECT_NE(r.err.find(words), std::string::npos) << r.err;
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  }
  /// A shell's command, with $PITH and $MODEL, in the test's folder.
  Result shell(const std::string& command) {
    const std::string all = "cd '" + folder_.string() + "' && exec >out 2>err; PITH='" + kProgram +
                            "'; MODEL='" + kModel + "'; " + command;
    std::string quoted;
    for (const char c : all) quoted += c == '\'' ? "'\\''" : std::string(1, c);
    const int status = std::system(("timeout -s KILL 60 bash -c '" + quoted + "'").c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read(folder_ / "out"),
            read(folder_ / "err")};
  }
  std::string file(const std::string& name) const { return (folder_ / name).string(); }
  /// A copy of the demo model to damage; big files are links.
  fs::path damaged(const std::string& file, const std::string& bytes) {
    const fs::path copy = folder_ / "model";
    fs::create_directory(copy);
    for (const auto& entry : fs::directory_iterator(kModel))
      if (entry.path().filename() != file)
        fs::create_symlink(entry.path(), copy / entry.path().filename());
    write(copy / file, bytes);
    return copy;
  }

  fs::path folder_;
};

}  // namespace pith::test
