#pragma once
// One session with its pending token and history: what `run` and its interactive mode share.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "pith/generate.h"

namespace pith::cli {

class Conversation {
 public:
  explicit Conversation(Session session) : session_(std::move(session)) {}

  /// Appends the ids (after the last answer's pending token) and answers.
  GenerateResult turn(std::span<const int32_t> ids, GenerateOptions options,
                      const std::function<void(std::string_view)>& on_text,
                      const Progress& on_prefill);
  Conversation fork() const;
  Session& session() { return session_; }

 private:
  Session session_;
  std::vector<int32_t> history_;  // tokens in the session
  std::vector<int32_t> pending_;  // the last drawn token, not in the session yet
};

/// Reads lines and answers each, on one cache, until /quit, the end of input or Ctrl-C at the
/// prompt. `bos` as encode_prompt takes it, for the first line. Returns the exit status.
struct InteractiveOptions {
  GenerateOptions generate;
  std::string first;  ///< a prompt from -p or -f, answered before the first line is read
  int bos = -1;
  bool echo_first = true;
};
int run_interactive(Session session, const InteractiveOptions& options);

}  // namespace pith::cli
