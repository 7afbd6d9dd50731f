#pragma once
// Lines that a person types: with editing, history and paste of several lines on a terminal, plain
// otherwise.

#include <memory>
#include <optional>
#include <string>

namespace pith::cli {

class LineReader {
 public:
  LineReader();
  ~LineReader();
  LineReader(const LineReader&) = delete;
  LineReader& operator=(const LineReader&) = delete;

  /// A text of one line or more, without the last line's end: a line that ends in a backslash
  /// continues in the next, and what is pasted stays whole. Nothing at the end of input, or after
  /// Ctrl-C where nothing was typed yet; Ctrl-C elsewhere begins the line anew.
  std::optional<std::string> read();
  /// Input is a terminal: prompts are shown.
  bool terminal() const;
  /// Lines can be edited here.
  bool editing() const;

 private:
  std::optional<std::string> read_line(const char* prompt);
  std::optional<std::string> read_plain_line();

  class Editor;
  std::unique_ptr<Editor> editor_;  // null: plain lines
  std::string buffer_;              // read and not yet handed out
};

/// Text for /help: how lines are typed here.
const char* line_help(const LineReader& lines);

}  // namespace pith::cli
