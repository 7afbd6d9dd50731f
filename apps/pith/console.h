#pragma once
// What a person sees: progress on a terminal, tables, sizes with units.

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "pith/model.h"

namespace pith::cli {

/// "512 B", "31.5 MB", ... in powers of 1000.
std::string human_bytes(double bytes);
/// "1.2 s", "350 ms", "3 min 20 s".
std::string human_seconds(double seconds);
/// "17", "2.1K", "16.3M", "7.2B".
std::string human_count(double count);

/// Largest resident set of this process so far, in bytes.
size_t peak_memory();

/// Writes and flushes text on standard output. Throws kIo if nobody can receive it.
void write_out(std::string_view text);

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

/// Columns as wide as they need to be: the first and those named in `left` flush left, numbers
/// flush right.
class Table {
 public:
  explicit Table(std::vector<std::string> header, const std::vector<size_t>& left = {});
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<bool> left_;
};

}  // namespace pith::cli
