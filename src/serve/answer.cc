#include "serve/answer.h"

#include <algorithm>

namespace pith::serve {
namespace {

SamplingOptions sampling_of(const Task& task, size_t choice) {
  SamplingOptions out = task.sampling;
  // Choices differ, and the first is what one alone would be.
  out.seed += choice * 0x9E3779B97F4A7C15u;
  if (task.ignore_eos) out.never.insert(out.never.end(), task.ends.begin(), task.ends.end());
  return out;
}

std::string piece_of(int32_t token, const Tokenizer& tokenizer) {
  return token < tokenizer.vocab_size() ? tokenizer.piece(token) : "";
}

}  // namespace

Answer::Answer(const Task& task, const Tokenizer& tokenizer, size_t choice)
    : task_(task),
      tokenizer_(tokenizer),
      choice_(task.first_choice + choice),
      sampler_(sampling_of(task, choice), task.prompt.size()),
      prompt_(task.prompt.size()),
      history_(task.prompt),
      filter_(task.stop) {}

bool Answer::is_end(int32_t token) const {
  return std::find(task_.ends.begin(), task_.ends.end(), token) != task_.ends.end();
}

TokenShown show_token(int32_t token, std::span<const float> logits, int most,
                      const Tokenizer& tokenizer) {
  const TokenLogprobs p = log_probabilities(logits, token, static_cast<size_t>(std::max(most, 0)));
  TokenShown out{piece_of(token, tokenizer), p.logprob, {}};
  for (const auto& [id, logprob] : p.top)
    out.likeliest.push_back({piece_of(id, tokenizer), logprob});
  return out;
}

void Answer::show(std::string_view text) {
  if (text.empty()) return;
  task_.listener->piece(choice_, text, tokens_, ids_);
  tokens_.clear();
  ids_.clear();
}

bool Answer::take(int32_t token, std::span<const float> logits) {
  history_.push_back(token);
  if (is_end(token)) {
    end(StopReason::kEndOfText);
    return false;
  }
  if (token < tokenizer_.vocab_size() && !tokenizer_.is_special(token)) {
    if (task_.logprobs >= 0)
      tokens_.push_back(show_token(token, logits, task_.logprobs, tokenizer_));
    ids_.push_back(token);
    show(filter_.push(utf8_.push(tokenizer_.piece(token))));
  }
  if (filter_.stopped())
    end(StopReason::kStopString);
  else if (drawn() >= task_.max_tokens)
    end(StopReason::kMaxTokens);
  return !ended();
}

void Answer::end(StopReason reason) {
  reason_ = reason;
  if (!filter_.stopped()) {
    std::string rest(filter_.push(utf8_.flush()));
    rest += filter_.finish();
    show(rest);
  }
  task_.listener->choice_ended(choice_, reason);
}

}  // namespace pith::serve
