#pragma once
// Runs python3 as a child: pip, and the package that draws reports.

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pith {

struct PythonRun {
  std::vector<std::string> arguments;
  std::filesystem::path input = {};   ///< standard input; empty: nothing
  std::filesystem::path output = {};  ///< standard output; empty: with standard error
  std::filesystem::path log = {};     ///< standard error; empty: ours
  std::function<void(const std::string&)> line = nullptr;  ///< takes standard output by lines
};

/// The exit status, a signal's number plus 128; nothing without python3. The child imports no
/// module of the folder that we stand in, of PYTHONPATH or of the user's: a cloned repository with
/// a pip.py of its own runs none of it.
std::optional<int> run_python(const PythonRun& what);

/// The last line of a log that is not only white space.
std::string last_line(const std::filesystem::path& log);

}  // namespace pith
