#include "console.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "interrupt.h"
#include "pith/error.h"

namespace pith::cli {
namespace {

// Characters, not bytes: what a terminal shows of UTF-8 without wide characters.
size_t width_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

}  // namespace

std::string human_bytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) bytes /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes)
                   : fmt::format("{:.{}f} {}", bytes,
                                 bytes < 9.995   ? 2
                                 : bytes < 99.95 ? 1
                                                 : 0,
                                 kUnits[unit]);
}

std::string human_seconds(double seconds) {
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 99.5) return fmt::format("{:.1f} s", seconds);
  const long whole = std::lround(seconds);
  return fmt::format("{} min {} s", whole / 60, whole % 60);
}

std::string human_count(double count) {
  static constexpr std::array<const char*, 4> kUnits{"", "K", "M", "B"};
  size_t unit = 0;
  while (count >= 999.5 && unit + 1 < kUnits.size()) count /= 1000, ++unit;
  return unit == 0 ? fmt::format("{:.0f}", count)
                   : fmt::format("{:.{}f}{}", count, count < 99.95 ? 1 : 0, kUnits[unit]);
}

size_t peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<size_t>(usage.ru_maxrss) * 1024;
}

void write_out(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
}

ProgressBar::ProgressBar(std::string label, std::string unit, bool quiet)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      on_(!quiet && isatty(STDERR_FILENO) != 0),
      start_(std::chrono::steady_clock::now()) {}

ProgressBar::~ProgressBar() { finish(); }

bool ProgressBar::update(size_t done, size_t total) {
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const bool due = now - last_ > std::chrono::milliseconds(80) || done >= total;
  if (on_ && total > 0 && due && (shown_ || seconds > 0.25)) {
    constexpr size_t kWidth = 24;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    const size_t filled = std::min(kWidth, static_cast<size_t>(share * kWidth));
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    const double left = rate > 0 ? static_cast<double>(total - std::min(done, total)) / rate : 0;
    fmt::print(stderr, "\r\x1b[K{} [{}{}] {:3.0f}%  {}/{}{}  {} left", label_,
               std::string(filled, '#'), std::string(kWidth - filled, '.'), share * 100, done,
               total, unit_.empty() ? "" : " " + unit_, human_seconds(left));
    std::fflush(stderr);
    shown_ = true, last_ = now;
  }
  return !interrupted();
}

Progress ProgressBar::callback() {
  return [this](size_t done, size_t total) { return update(done, total); };
}

void ProgressBar::finish() {
  if (shown_) fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

Table::Table(std::vector<std::string> header, const std::vector<size_t>& left)
    : left_(header.size(), false) {
  if (!left_.empty()) left_[0] = true;
  for (size_t column : left) left_.at(column) = true;
  add(std::move(header));
}

void Table::add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }

std::string Table::text() const {
  std::vector<size_t> widths(left_.size(), 0);
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], width_of(row[c]));
  }
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < rows_[r].size(); ++c) {
      const std::string pad(widths[c] - width_of(rows_[r][c]), ' ');
      line += (c > 0 ? "  " : "") + (left_[c] ? rows_[r][c] + pad : pad + rows_[r][c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    if (r > 0) continue;
    for (size_t c = 0; c < widths.size(); ++c) {
      out += (c > 0 ? "  " : "") + std::string(widths[c], '-');
    }
    out += "\n";
  }
  return out;
}

}  // namespace pith::cli
