#include "console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
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

// Its beginning and its end: policies differ in either.
std::string shortened(const std::string& text, size_t width) {
  if (text.size() <= width) return text;
  if (width < 8) return text.substr(0, width);
  const size_t tail = (width - 3) / 2;
  return text.substr(0, width - 3 - tail) + "..." + text.substr(text.size() - tail);
}

bool reader_went = false;

ssize_t write_to_stderr(void* /*cookie*/, const char* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::write(STDERR_FILENO, data + done, bytes - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return static_cast<ssize_t>(bytes);
}

}  // namespace

std::string human_bytes(double bytes) {
  static constexpr std::array<const char*, 5> kUnits{"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < kUnits.size()) bytes /= 1024, ++unit;
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

void prepare_streams() {
  // The wrong way round, so that reading and writing them fails as it does when they are closed.
  for (const auto& [descriptor, mode] :
       {std::pair{STDIN_FILENO, O_WRONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_WRONLY}})
    if (::fcntl(descriptor, F_GETFD) < 0) (void)!::open("/dev/null", mode);
  // fmt and others throw where a write fails, as it does on a full disk; what could be done there
  // must not depend on whether anybody can be told.
  const cookie_io_functions_t sink{nullptr, write_to_stderr, nullptr, nullptr};
  if (std::FILE* quiet = ::fopencookie(nullptr, "w", sink)) {
    std::setvbuf(quiet, nullptr, _IONBF, 0);
    stderr = quiet;
  }
}

bool reader_gone() { return reader_went; }

std::string visible(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const unsigned char next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    const bool c1 = c == 0xC2 && next >= 0x80 && next < 0xA0;
    if (c1) {
      out += fmt::format("\\u{:04x}", next);
      ++i;
    } else if ((c < 0x20 && c != '\n' && c != '\t') || c == 0x7F) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += text[i];
    }
  }
  return out;
}

void write_out(std::string_view text) {
  static const bool kTerminal = isatty(STDOUT_FILENO) != 0;
  const std::string safe = kTerminal ? visible(text) : "";
  if (kTerminal) text = safe;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    reader_went = errno == EPIPE;
    throw Error(ErrorCode::kIo,
                fmt::format("standard output cannot be written: {}", std::strerror(errno)));
  }
}

size_t terminal_width() {
  winsize size{};
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO})
    if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col >= 40) return size.ws_col;
  return 80;
}

void say(std::string_view message) {
  const std::string text = visible(message);
  if (isatty(STDERR_FILENO) == 0) {
    fmt::print(stderr, "{}\n", text);
    return;
  }
  std::string folded;
  for (size_t start = 0, end; start <= text.size(); start = end + 1) {
    end = std::min(text.find('\n', start), text.size());
    folded +=
        wrapped(std::string_view(text).substr(start, end - start), 2, terminal_width()) + "\n";
  }
  fmt::print(stderr, "{}", folded);
}

std::string wrapped(std::string_view text, size_t indent, size_t width) {
  std::string out;
  size_t room = width;
  while (width_of(text) > room) {
    // The last place within the line where it may end; a word that is longer is cut.
    size_t end = 0;
    for (size_t i = 0, columns = 0; i < text.size() && columns < room; ++i) {
      columns += (static_cast<unsigned char>(text[i]) & 0xC0) != 0x80 ? 1 : 0;
      const bool breaks = i + 1 < text.size() && (text[i + 1] == ' ' || text[i] == ',' ||
                                                  text[i] == ';' || text[i] == '+');
      if (breaks && i > 0) end = i + 1;
    }
    if (end == 0) end = std::min(room, text.size());
    out += std::string(text.substr(0, end)) + "\n" + std::string(indent, ' ');
    text.remove_prefix(end);
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    room = width - std::min(indent, width - 1);
  }
  return out += text;
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
    constexpr size_t kBar = 24;
    const double share = static_cast<double>(done) / static_cast<double>(total);
    const size_t filled = std::min(kBar, static_cast<size_t>(share * kBar));
    const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
    const double left = rate > 0 ? static_cast<double>(total - std::min(done, total)) / rate : 0;
    const std::string rest =
        fmt::format(" [{}{}] {:3.0f}%  {}/{}{}  {} left", std::string(filled, '#'),
                    std::string(kBar - filled, '.'), share * 100, done, total,
                    unit_.empty() ? "" : " " + unit_, human_seconds(left));
    // One column stays free: a line that fills the last one wraps, and is not wiped with its end.
    const size_t width = terminal_width() - 1, room = width - std::min(width, rest.size());
    fmt::print(stderr, "\r\x1b[K{}", (shortened(label_, room) + rest).substr(0, width));
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
    : left_(header.size(), false), widths_(header.size(), 0) {
  if (!left_.empty()) left_[0] = true;
  for (size_t column : left) left_.at(column) = true;
  add(std::move(header));
}

void Table::add(std::vector<std::string> row) {
  for (size_t c = 0; c < row.size(); ++c) widths_[c] = std::max(widths_[c], width_of(row[c]));
  rows_.push_back(std::move(row));
}

std::string Table::line_of(const std::vector<std::string>& row, const Columns& columns) const {
  std::string line;
  for (const size_t c : columns) {
    const std::string cell = c < row.size() ? row[c] : "";
    const std::string pad(widths_[c] - width_of(cell), ' ');
    line +=
        (line.empty() && c == columns.front() ? "" : "  ") + (left_[c] ? cell + pad : pad + cell);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return line + "\n";
}

std::vector<Table::Columns> Table::fold(size_t width, size_t without) const {
  std::vector<Columns> lines(1);
  size_t used = 0;
  for (size_t c = 0; c < widths_.size(); ++c) {
    if (c == without) continue;
    if (!lines.back().empty() && used + 2 + widths_[c] > width) lines.emplace_back(), used = 0;
    used += (lines.back().empty() ? 0 : 2) + widths_[c];
    lines.back().push_back(c);
  }
  return lines;
}

std::string Table::text(size_t width) const {
  constexpr size_t kNone = ~size_t{0}, kIndent = 2;
  size_t natural = 0;
  for (const size_t w : widths_) natural += w + 2;
  const bool fits = natural <= width + 2;
  const size_t words =
      fits ? kNone : static_cast<size_t>(std::ranges::max_element(widths_) - widths_.begin());
  const auto lines = fold(fits ? natural : width - kIndent, words);
  const std::string indent(fits ? 0 : kIndent, ' ');
  std::string out;
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (!fits && words < rows_[r].size()) out += wrapped(rows_[r][words], 4, width) + "\n";
    for (const Columns& columns : lines) {
      const std::string line = line_of(rows_[r], columns);
      if (line.size() > 1) out += indent + line;
    }
    if (r > 0) continue;
    std::vector<std::string> dashes;
    for (const size_t w : widths_) dashes.emplace_back(w, '-');
    out += fits ? line_of(dashes, lines[0]) : std::string(width, '-') + "\n";
  }
  return out;
}

}  // namespace pith::cli
