#pragma once
// One answer while it is made: draws become text that is certain, until something ends it.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pith/tokenizer.h"
#include "serve/task.h"
#include "session/stop_filter.h"

namespace pith::serve {

class Answer {
 public:
  Answer(const Task& task, const Tokenizer& tokenizer, size_t choice);

  Sampler& sampler() { return sampler_; }
  std::span<const int32_t> history() const { return history_; }
  /// The token that was drawn last: the next to append.
  const int32_t& pending() const { return history_.back(); }
  size_t drawn() const { return history_.size() - prompt_; }
  size_t choice() const { return choice_; }

  /// Takes a drawn token; `logits` [V] are those it was drawn from, where log-probabilities are
  /// wanted. Tells the listener. True: the answer goes on.
  bool take(int32_t token, std::span<const float> logits);
  /// Ends it for a reason of others.
  void end(StopReason reason);
  bool ended() const { return reason_.has_value(); }
  StopReason reason() const { return *reason_; }

 private:
  bool is_end(int32_t token) const;
  void show(std::string_view text);
  TokenShown shown(int32_t token, std::span<const float> logits) const;

  const Task& task_;
  const Tokenizer& tokenizer_;
  const size_t choice_;
  Sampler sampler_;
  size_t prompt_;                 // tokens
  std::vector<int32_t> history_;  // prompt and what was drawn
  Utf8Stream utf8_;
  StopFilter filter_;
  std::vector<TokenShown> tokens_;  // of text that is not certain yet
  std::vector<int32_t> ids_;        // the same
  std::optional<StopReason> reason_;
};

/// Log-probabilities of `token` and the `most` likeliest of the raw logits.
TokenShown show_token(int32_t token, std::span<const float> logits, int most,
                      const Tokenizer& tokenizer);

}  // namespace pith::serve
