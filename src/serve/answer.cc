#include "serve/answer.h"

#include <algorithm>

namespace pith::serve {
namespace {

GenerateOptions options_of(const Task& task, size_t choice) {
  GenerateOptions out;
  out.sampling = task.sampling;
  // Choices differ, and the first is what one alone would be.
  out.sampling.seed += choice * 0x9E3779B97F4A7C15u;
  out.max_tokens = static_cast<int64_t>(task.max_tokens);
  out.stop = task.stop;
  out.ends = task.ends;
  out.ignore_eos = task.ignore_eos;
  out.form = task.form;
  return out;
}

std::string piece_of(int32_t token, const Tokenizer& tokenizer) {
  return token < tokenizer.vocab_size() ? tokenizer.piece(token) : "";
}

TokenShown show_token(int32_t token, std::span<const float> logits, int most,
                      const Tokenizer& tokenizer) {
  const TokenLogprobs p = log_probabilities(logits, token, static_cast<size_t>(std::max(most, 0)));
  TokenShown out{piece_of(token, tokenizer), p.logprob, {}};
  for (const auto& [id, logprob] : p.top)
    out.likeliest.push_back({piece_of(id, tokenizer), logprob});
  return out;
}

}  // namespace

Answer::Answer(const Task& task, const Model& model, size_t choice)
    : task_(task),
      tokenizer_(model.tokenizer()),
      choice_(task.first_choice + choice),
      stepper_(model, options_of(task, choice)),
      sampler_(stepper_.sampling(), task.prompt.size()) {
  if (task_.form) sampler_.set_mask(stepper_.mask());
}

void Answer::show(std::string_view text) {
  if (text.empty()) return;
  task_.listener->piece(choice_, text, tokens_, ids_);
  tokens_.clear();
  ids_.clear();
}

void Answer::take(int32_t token, std::span<const float> logits, size_t room) {
  const Stepper::Out out = stepper_.push(token, room);
  if (!stepper_.ended_text() &&
      !tokenizer_.is_special(std::min(token, tokenizer_.vocab_size() - 1))) {
    if (task_.logprobs >= 0)
      tokens_.push_back(show_token(token, logits, task_.logprobs, tokenizer_));
    ids_.push_back(token);
  }
  show(out.text);
  if (!out.stop) {
    if (task_.form) sampler_.set_mask(stepper_.mask());
    return;
  }
  reason_ = out.stop;
  task_.listener->choice_ended(choice_, *reason_);
}

void Answer::end(StopReason reason) {
  reason_ = reason;
  show(stepper_.finish());
  task_.listener->choice_ended(choice_, reason);
}

}  // namespace pith::serve
