// The report's page and plots: the Python package draws them (python/pith/report).

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "core/input_file.h"
#include "core/output_file.h"
#include "pith/error.h"
#include "pith_tools/results.h"
#include "tools/python_run.h"

namespace pith {
namespace {

namespace fs = std::filesystem;

constexpr int kMissing = 77;
constexpr const char* kDraw = R"(
import sys
try:
    from pith.report.__main__ import main
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)
sys.exit(main(sys.argv[1:]))
)";

/// A folder for the lines, the page and the log of one child.
class Exchange {
 public:
  Exchange() {
    std::string name = (fs::temp_directory_path() / "pith-report-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr)
      throw Error(ErrorCode::kIo,
                  fmt::format("no temporary folder {}: {}", name, std::strerror(errno)));
    folder_ = name;
  }
  ~Exchange() {
    std::error_code ignored;
    fs::remove_all(folder_, ignored);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  fs::path operator/(const char* name) const { return folder_ / name; }

 private:
  fs::path folder_;
};

[[noreturn]] void not_installed(const std::string& why) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("pages and plots are drawn by the Python package pith-kv with matplotlib, "
                  "and the python3 on PATH lacks them ({}). Activate an "
                  "environment that has, or make one: 'python3 -m venv ENV', "
                  "'. ENV/bin/activate', and in a checkout of Pith 'pip install .[plot]'. "
                  "--lines needs neither",
                  why));
}

/// Throws the error of the package, with its code.
[[noreturn]] void failed(int status, std::string said) {
  constexpr std::string_view kHead = "pith: error: ";
  constexpr int kExitError = 10;
  if (!said.starts_with(kHead) || status < kExitError ||
      status > kExitError + static_cast<int>(ErrorCode::kInternal))
    throw Error(ErrorCode::kInternal, fmt::format("pith.report ended with {}: {}", status, said));
  throw Error(static_cast<ErrorCode>(status - kExitError), said.substr(kHead.size()));
}

}  // namespace

std::string draw_report(const std::string& lines, const ReportOptions& options) {
  const Exchange at;
  const fs::path in = at / "lines", out = at / "page", log = at / "log";
  write_file(in, lines);
  std::vector<std::string> arguments{"-c", kDraw, "-"};
  if (options.page) arguments.insert(arguments.end(), {"--out", "-"});
  if (!options.plots.empty())
    arguments.insert(arguments.end(), {"--plots", fs::absolute(options.plots).string()});
  if (!options.title.empty()) arguments.push_back("--title=" + options.title);
  const auto status = run_python({.arguments = arguments, .input = in, .output = out, .log = log});
  if (!status) not_installed("there is none");
  if (*status == kMissing) not_installed(last_line(log));
  if (*status != 0) failed(*status, last_line(log));
  return read_file(out, kMostTextBytes);
}

}  // namespace pith
