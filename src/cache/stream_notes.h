#pragma once
// The stream that all layers of a cache saw, on every device: which tokens are
// protected, and where prompts ended. With the number of tokens, a plan is replayed from it.

#include <functional>
#include <span>
#include <vector>

#include "core/archive.h"
#include "pith/policy.h"
#include "plan/protected_rows.h"

namespace pith {

/// Refuses `tokens` rows at once where the policy reads whole prompts.
void check_chunk(PromptReading prompt, size_t tokens);

struct StreamNotes {
  ProtectedRows protected_rows;
  std::vector<uint64_t> prompt_ends;  ///< ascending: tokens when a prompt was complete
  /// Tokens before each of these prompts, where all are gathered before the selection.
  std::vector<uint64_t> gathered;
  bool gathers = false;  ///< they are

  void end_prompt(uint64_t tokens) {
    if (prompt_ends.empty() || prompt_ends.back() != tokens) prompt_ends.push_back(tokens);
  }
  /// With `tokens`, at most `context`. Loading: into notes of a stream that nobody has seen, and
  /// `protect` is told the ranges before anything else is known.
  void archive(Archive& a, uint64_t& tokens, size_t context,
               const std::function<void(std::span<const TokenRange>)>& protect);
};

}  // namespace pith
