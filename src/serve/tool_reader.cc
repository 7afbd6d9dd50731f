#include "serve/tool_reader.h"

#include <algorithm>

#include "serve/forms.h"

namespace pith::serve {
namespace {

constexpr std::string_view kArguments = "\"arguments\":";

/// Bytes at the end of a text that may be the beginning of a word.
size_t beginning_at_end(std::string_view text, std::string_view word) {
  for (size_t n = std::min(text.size(), word.size() - 1); n > 0; --n)
    if (text.ends_with(word.substr(0, n))) return n;
  return 0;
}

}  // namespace

bool ToolReader::read_text(std::vector<ToolPiece>& out) {
  const size_t found = held_.find(kCallOpens);
  const bool opens = found != std::string::npos;
  size_t certain = opens ? found : held_.size() - beginning_at_end(held_, kCallOpens);
  // Line breaks between words and a call are the form's, not the words'.
  const size_t last = held_.find_last_not_of(" \n", certain - 1);
  const size_t words = certain == 0 || last == std::string::npos ? 0 : last + 1;
  if (words > 0) out.push_back({ToolPiece::Kind::kText, held_.substr(0, words)});
  held_.erase(0, opens ? found + std::string_view(kCallOpens).size() : words);
  if (opens) state_ = State::kHead;
  return opens;
}

bool ToolReader::read_head(std::vector<ToolPiece>& out) {
  const size_t arguments = held_.find(kArguments);
  if (arguments == std::string::npos) return false;
  const size_t begins = held_.find_first_not_of(' ', arguments + kArguments.size());
  if (begins == std::string::npos) return false;
  // The form has {"name": "NAME", before it, and names have no quotes.
  const size_t colon = held_.find(':');
  const size_t opens = held_.find('"', colon), closes = held_.find('"', opens + 1);
  out.push_back({ToolPiece::Kind::kBegins, held_.substr(opens + 1, closes - opens - 1)});
  ++calls_;
  held_.erase(0, begins);
  depth_ = 0;
  in_string_ = escaped_ = false;
  state_ = State::kArguments;
  return true;
}

bool ToolReader::read_arguments(std::vector<ToolPiece>& out) {
  size_t i = 0;
  bool over = false;
  for (; i < held_.size() && !over; ++i) {
    const char c = held_[i];
    if (in_string_) {
      if (!escaped_ && c == '"') in_string_ = false;
      escaped_ = !escaped_ && c == '\\';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{' || c == '[') {
      ++depth_;
    } else if (c == '}' || c == ']') {
      over = --depth_ == 0;
    }
  }
  if (i > 0) out.push_back({ToolPiece::Kind::kArguments, held_.substr(0, i)});
  held_.erase(0, i);
  if (!over) return false;
  out.push_back({ToolPiece::Kind::kEnds, ""});
  state_ = State::kTail;
  return true;
}

bool ToolReader::step(std::vector<ToolPiece>& out) {
  switch (state_) {
    case State::kText: return read_text(out);
    case State::kHead: return read_head(out);
    case State::kArguments: return read_arguments(out);
    case State::kTail: break;
  }
  const size_t closes = held_.find(kCallCloses);
  if (closes == std::string::npos) return false;
  held_.erase(0, closes + std::string_view(kCallCloses).size());
  state_ = State::kText;
  return true;
}

std::vector<ToolPiece> ToolReader::push(std::string_view text) {
  std::vector<ToolPiece> out;
  held_ += text;
  while (step(out)) {
  }
  return out;
}

std::vector<ToolPiece> ToolReader::finish() {
  std::vector<ToolPiece> out;
  if (state_ == State::kText && held_.find_first_not_of(" \n") != std::string::npos)
    out.push_back({ToolPiece::Kind::kText, held_});
  cut_ = state_ == State::kArguments;
  if (cut_) out.push_back({ToolPiece::Kind::kEnds, ""});
  held_.clear();
  return out;
}

}  // namespace pith::serve
