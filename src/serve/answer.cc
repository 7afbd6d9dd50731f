#include "serve/answer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
  const float highest = *std::max_element(logits.begin(), logits.end());
  const double sum = std::accumulate(logits.begin(), logits.end(), 0.0, [&](double s, float l) {
    return s + std::exp(static_cast<double>(l - highest));
  });
  const auto logprob = [&](int32_t id) {
    return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)] - highest) -
                              std::log(sum));
  };
  TokenShown out{piece_of(token, tokenizer), logprob(token), {}};
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto end = ids.begin() + std::min<std::ptrdiff_t>(most, std::ssize(ids));
  std::partial_sort(ids.begin(), end, ids.end(), [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  for (auto id = ids.begin(); id != end; ++id)
    out.likeliest.push_back({piece_of(*id, tokenizer), logprob(*id)});
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
