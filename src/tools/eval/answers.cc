#include "tools/eval/answers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace pith {
namespace {

std::string right_answer(const Sample& sample, const Turn& turn) {
  const bool all = sample.metric == Metric::kContainsAll;
  const std::string answer =
      all ? fmt::format("{}", fmt::join(turn.references, " ")) : turn.references.front();
  return turn.question.ends_with(' ') ? answer : " " + answer;
}

void append(std::vector<int32_t>& ids, const std::vector<int32_t>& more) {
  ids.insert(ids.end(), more.begin(), more.end());
}

}  // namespace

Passage answer_passage(const Sample& sample, const Tokenizer& tokenizer) {
  const Turn& turn = sample.turns.front();
  Passage passage;
  if (tokenizer.add_bos()) passage.tokens.push_back(tokenizer.bos());
  append(passage.tokens, tokenizer.encode(sample.context));
  passage.prompt = passage.tokens.size();
  append(passage.tokens, tokenizer.encode(turn.question));
  passage.scored_from = passage.tokens.size();
  append(passage.tokens, tokenizer.encode(right_answer(sample, turn)));
  return passage;
}

}  // namespace pith
