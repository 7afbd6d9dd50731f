// pith ps: the servers of this user. There is no daemon that knows of them, so the system's list of
// processes is read.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "console.h"
#include "engine.h"
#include "real_models.h"
#include "report.h"

namespace pith::cli {
namespace {

namespace fs = std::filesystem;

struct RunningServer {
  int pid = 0;
  uint64_t bytes = 0;                  // of memory that is its own
  std::vector<std::string> arguments;  // behind `serve`
};

std::string contents(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// "RssAnon:   1234 kB" of a process' status.
uint64_t own_bytes(const std::string& status) {
  constexpr std::string_view kField = "RssAnon:";
  const size_t at = status.find(kField);
  if (at == std::string::npos) return 0;
  const size_t digits = status.find_first_of("0123456789", at);
  uint64_t kib = 0;
  if (digits != std::string::npos)
    std::from_chars(status.data() + digits, status.data() + status.size(), kib);
  return kib * 1024;
}

std::vector<std::string> words_of(const std::string& zeros) {
  std::vector<std::string> out;
  for (size_t at = 0; at < zeros.size();) {
    const size_t end = std::min(zeros.find('\0', at), zeros.size());
    out.push_back(zeros.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

/// A process that ends meanwhile, or belongs to someone else, is not in the list.
std::vector<RunningServer> running() {
  std::vector<RunningServer> out;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
    const std::string name = entry.path().filename().string();
    RunningServer server;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), server.pid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    // Of processes of others the link cannot be read.
    const fs::path program = fs::read_symlink(entry.path() / "exe", ignored);
    if (ignored || !program.filename().string().starts_with("pith")) continue;
    auto words = words_of(contents(entry.path() / "cmdline"));
    if (words.size() < 2 || words[1] != "serve") continue;
    server.arguments.assign(words.begin() + 2, words.end());
    server.bytes = own_bytes(contents(entry.path() / "status"));
    out.push_back(std::move(server));
  }
  std::ranges::sort(out, {}, &RunningServer::pid);
  return out;
}

/// Keys that clients must send are nobody else's to read.
std::string shown(const std::vector<std::string>& arguments) {
  std::vector<std::string> out;
  bool hide = false;
  for (const std::string& word : arguments) {
    const bool key = word.starts_with("--api-key=");
    out.push_back(hide ? "..." : key ? "--api-key=..." : word);
    hide = word == "--api-key";
  }
  return visible(fmt::format("{}", fmt::join(out, " ")));
}

int list(bool json) {
  const auto servers = running();
  if (json) {
    Json entries = Json::array();
    for (const RunningServer& s : servers)
      entries.push_back({{"pid", s.pid}, {"bytes", s.bytes}, {"options", shown(s.arguments)}});
    print_json({{"servers", entries}});
    return 0;
  }
  if (servers.empty()) {
    say("pith: none of your servers runs; 'pith serve' starts one");
    return 0;
  }
  Table table({"pid", "memory", "options of 'pith serve'"}, {2});
  for (const RunningServer& s : servers)
    table.add(
        {std::to_string(s.pid), human_bytes(static_cast<double>(s.bytes)), shown(s.arguments)});
  write_out(table.text());
  return 0;
}

}  // namespace

void add_ps(CLI::App& root, Action& action) {
  auto json = std::make_shared<bool>(false);
  CLI::App* app = root.add_subcommand("ps", "List the servers that run");
  add_json_option(*app, *json);
  app->footer(
      "Your own processes of 'pith serve', with their memory without the weights, which\n"
      "are mapped from their file. A server's GET /metrics has its load.\n");
  app->callback([json, &action] { action = [json] { return list(*json); }; });
}

}  // namespace pith::cli
