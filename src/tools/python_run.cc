#include "tools/python_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "pith/error.h"

extern char** environ;

namespace pith {
namespace {

constexpr const char* kPython = "python3";

/// A pipe whose ends are closed in the child.
class Pipe {
 public:
  Pipe() {
    if (pipe2(ends_, O_CLOEXEC) != 0)
      throw Error(ErrorCode::kIo, fmt::format("no pipe to {}: {}", kPython, std::strerror(errno)));
  }
  ~Pipe() { close_end(0), close_end(1); }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  int end(int which) const { return ends_[which]; }
  void close_end(int which) {
    if (ends_[which] >= 0) close(ends_[which]);
    ends_[which] = -1;
  }

 private:
  int ends_[2] = {-1, -1};
};

void pass_lines(int from, const std::function<void(const std::string&)>& take) {
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(from, buffer, sizeof(buffer))) != 0;) {
    if (n < 0 && errno != EINTR) break;
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    for (size_t end; (end = text.find('\n')) != text.npos; text.erase(0, end + 1)) {
      take(text.substr(0, end));
    }
  }
}

}  // namespace

std::optional<int> run_python(const PythonRun& what) {
  std::vector<char*> raw{const_cast<char*>(kPython), const_cast<char*>("-I")};
  for (const std::string& a : what.arguments) raw.push_back(const_cast<char*>(a.c_str()));
  raw.push_back(nullptr);
  std::optional<Pipe> lines;
  posix_spawn_file_actions_t files;
  if (what.line != nullptr) lines.emplace();
  posix_spawn_file_actions_init(&files);
  const char* input = what.input.empty() ? "/dev/null" : what.input.c_str();
  constexpr int kFresh = O_CREAT | O_TRUNC | O_WRONLY;
  posix_spawn_file_actions_addopen(&files, 0, input, O_RDONLY, 0);
  if (!what.log.empty())
    posix_spawn_file_actions_addopen(&files, 2, what.log.c_str(), kFresh, 0600);
  if (what.output.empty())
    posix_spawn_file_actions_adddup2(&files, lines ? lines->end(1) : 2, 1);
  else
    posix_spawn_file_actions_addopen(&files, 1, what.output.c_str(), kFresh, 0600);
  pid_t pid = 0;
  const int failed = posix_spawnp(&pid, kPython, &files, nullptr, raw.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) return std::nullopt;
  if (lines) {
    lines->close_end(1);
    pass_lines(lines->end(0), what.line);
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string last_line(const std::filesystem::path& log) {
  std::ifstream stream(log);
  std::string last;
  for (std::string line; std::getline(stream, line);) {
    if (line.find_first_not_of(" \t\r") != line.npos) last = line;
  }
  return last.empty() ? "it said nothing" : last;
}

}  // namespace pith
