#pragma once
// Text with calls of tools in it, as pieces that clients get: words, a call's beginning, its
// arguments as they grow.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pith::serve {

struct ToolPiece {
  enum class Kind : uint8_t { kText, kBegins, kArguments, kEnds };
  Kind kind;
  std::string text;  ///< words, the tool's name, or a piece of the arguments' JSON
};

class ToolReader {
 public:
  /// `begun`: the text begins inside of a call.
  explicit ToolReader(bool begun) : state_(begun ? State::kHead : State::kText) {}
  /// Returns the pieces that are certain.
  std::vector<ToolPiece> push(std::string_view text);
  /// Returns the pieces held back.
  std::vector<ToolPiece> finish();
  size_t calls() const { return calls_; }
  /// The text ended within a call's arguments.
  bool cut() const { return cut_; }

 private:
  enum class State : uint8_t { kText, kHead, kArguments, kTail };
  bool step(std::vector<ToolPiece>& out);
  bool read_text(std::vector<ToolPiece>& out);
  bool read_head(std::vector<ToolPiece>& out);
  bool read_arguments(std::vector<ToolPiece>& out);

  State state_;
  std::string held_;
  size_t calls_ = 0;
  int depth_ = 0;  // of the arguments' brackets
  bool in_string_ = false, escaped_ = false, cut_ = false;
};

}  // namespace pith::serve
