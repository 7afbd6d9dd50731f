#pragma once
// Output for people: progress on a terminal, tables, sizes with units.

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "pith/model.h"

namespace pith::cli {

/// "512 B", "31.5 MiB", ... in powers of 1024, as budgets and limits are given.
std::string human_bytes(double bytes);
/// "1.2 s", "350 ms", "3 min 20 s".
std::string human_seconds(double seconds);
/// "17", "2.1K", "16.3M", "7.2B".
std::string human_count(double count);

/// Largest resident set of this process so far, in bytes.
size_t peak_memory();

/// Makes the standard streams safe to use, first of all: one that is closed is not given to the
/// next file that is opened, and writing to standard error never fails, whoever does it.
void prepare_streams();

/// Control characters but line ends and tabs as \x1b: what a file's names or a model's words hold
/// must not drive the terminal.
std::string visible(std::string_view text);

/// Writes and flushes text on standard output, in a terminal made visible. Throws kIo if the
/// reader has gone.
void write_out(std::string_view text);
/// True once a reader has gone (pith ... | head): that is no error to talk about.
bool reader_gone();

/// A bar on standard error for work of more than a moment. Nothing is shown if standard error is
/// not a terminal, or if `quiet`. The bar appears after a quarter of a second and is wiped at the
/// end.
class ProgressBar {
 public:
  ProgressBar(std::string label, std::string unit, bool quiet);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  /// Returns false once Ctrl-C was pressed.
  bool update(size_t done, size_t total);
  /// update() as the library wants it; the bar must outlive it.
  Progress callback();
  void finish();

 private:
  std::string label_, unit_;
  bool on_, shown_ = false;
  std::chrono::steady_clock::time_point start_, last_{};
};

/// Columns of the terminal; 80 where there is none.
size_t terminal_width();
/// Lines of at most `width` columns, broken between words or behind ',', ';' and '+'; those after
/// the first begin with `indent` blanks.
std::string wrapped(std::string_view text, size_t indent, size_t width = 80);
/// A message and a line break to standard error, made visible; in a terminal folded to its width.
void say(std::string_view text);

/// Columns as wide as they need to be: the first and those named in `left` flush left, numbers
/// flush right. A table that is wider than the terminal (or 80) is folded: the widest words of a
/// row, a policy's, get lines of their own, and the other columns as many lines as they need.
class Table {
 public:
  explicit Table(std::vector<std::string> header, const std::vector<size_t>& left = {});
  void add(std::vector<std::string> row);
  std::string text() const { return text(terminal_width()); }
  std::string text(size_t width) const;

 private:
  using Columns = std::vector<size_t>;
  std::string line_of(const std::vector<std::string>& row, const Columns& columns) const;
  std::vector<Columns> fold(size_t width, size_t without) const;

  std::vector<std::vector<std::string>> rows_;
  std::vector<bool> left_;
  std::vector<size_t> widths_;
};

}  // namespace pith::cli
