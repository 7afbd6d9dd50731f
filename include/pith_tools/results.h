#pragma once
// Results of `pith eval`, `pith probe --json` and `pith bench select --csv`, put together.

#include <filesystem>
#include <string>
#include <vector>

namespace pith {

/// The files as JSON lines (docs/evaluation.md): a line for each setting, then one for each policy,
/// with its seeds averaged. Lines are read, too. Throws kNotFound, kIo, and kCorrupt with file and
/// line where they hold something else.
std::string result_lines(const std::vector<std::filesystem::path>& files);

struct ReportOptions {
  std::string title;            ///< of the page; empty: its own
  std::filesystem::path plots;  ///< a folder for plots as files of their own; empty: none
  bool page = true;
};

/// Such lines as one HTML page, drawn by the Python package. Throws kUnsupported, with what to do,
/// if python3 does not have it, and kInvalidArgument if there is nothing to show.
std::string draw_report(const std::string& lines, const ReportOptions& options);

}  // namespace pith
