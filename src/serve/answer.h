#pragma once
// One answer while it is made: draws become text that is certain, until something ends it.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "pith/tokenizer.h"
#include "serve/task.h"

namespace pith::serve {

class Answer {
 public:
  Answer(const Task& task, const Model& model, size_t choice);

  Sampler& sampler() { return sampler_; }
  /// The token that was drawn last: the next to append.
  const int32_t& pending() const { return stepper_.tokens().back(); }
  size_t drawn() const { return stepper_.tokens().size(); }

  /// Takes a drawn token and passes it to the listener; `logits` [V] are those it was drawn from,
  /// where log-probabilities are wanted, and `room` more tokens fit into the context.
  void take(int32_t token, std::span<const float> logits, size_t room);
  /// Ends it for a reason from outside.
  void end(StopReason reason);
  bool ended() const { return reason_.has_value(); }
  StopReason reason() const { return *reason_; }

 private:
  void show(std::string_view text);

  const Task& task_;
  const Tokenizer& tokenizer_;
  const size_t choice_;
  Stepper stepper_;
  Sampler sampler_;
  std::vector<TokenShown> tokens_;  // of text that is not certain yet
  std::vector<int32_t> ids_;        // the same
  std::optional<StopReason> reason_;
};

}  // namespace pith::serve
