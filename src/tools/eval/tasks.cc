#include "tools/eval/tasks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "pith/error.h"
#include "tools/eval/task_parts.h"

namespace pith {

std::vector<TaskInfo> tasks() {
  return {
      {"facts", "facts in made-up prose, each asked on its own (the demo model's format)",
       make_facts},
      {"multi_turn", "the same, asked one after another on one compressed cache", make_multi_turn},
      {"docqa", "a question on one of ten documents (the demo model's format)", make_docqa},
      {"kv", "a value of a JSON object by its key (the demo model's format)", make_kv},
      {"passkey", "a number of five digits in noise (KIVI's form)", make_passkey},
      {"niah_single_1", "RULER: one needle in noise", make_niah_single_1},
      {"niah_multikey_2", "RULER: one needle among needles", make_niah_multikey_2},
      {"niah_multikey_3", "RULER: one needle among needles, UUIDs", make_niah_multikey_3},
      {"vt", "RULER: variables that hold a value, over four assignments", make_vt},
      {"cwe", "RULER: the ten most common words of a list", make_cwe},
      {"fwe", "RULER: the three most frequent coded words", make_fwe}};
}

Sample make_sample(std::string_view task, const SampleRequest& request) {
  std::vector<std::string_view> names;
  for (const TaskInfo& t : tasks()) {
    names.push_back(t.name);
    if (t.name != task) continue;
    Sample sample = t.make(request);
    sample.task = std::string(task), sample.number = request.number;
    return sample;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' is no task; there are: {}", task, fmt::join(names, ", ")));
}

Dice sample_dice(std::string_view task, const SampleRequest& request) {
  uint32_t use = 1;
  for (char c : task) use = use * 31 + static_cast<unsigned char>(c);
  return Dice(request.seed, (use << 16) ^ static_cast<uint32_t>(request.number));
}

size_t tokens_of(const Sample& sample, const SampleRequest& request) {
  size_t longest = 0, all = 0;
  for (const Turn& t : sample.turns) {
    const size_t turn = request.count_tokens(t.question) + sample.max_tokens;
    longest = std::max(longest, turn), all += turn;
  }
  // One more for the token that begins a text.
  return 1 + request.count_tokens(sample.context) + (sample.conversation ? all : longest);
}

Sample largest_sample(const SampleRequest& request, size_t least,
                      const std::function<Sample(size_t size)>& make) {
  Sample best = make(least);
  if (const size_t tokens = tokens_of(best, request); tokens > request.tokens)
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} tokens are too few for this task: its smallest sample takes {}; "
                            "use a longer context (-c)",
                            request.tokens, tokens));
  size_t fits = least, over = least * 2;
  for (;; over *= 2) {
    Sample more = make(over);
    if (tokens_of(more, request) > request.tokens) break;
    best = std::move(more), fits = over;
  }
  while (over - fits > 1) {
    const size_t middle = fits + (over - fits) / 2;
    Sample more = make(middle);
    if (tokens_of(more, request) > request.tokens) {
      over = middle;
    } else {
      best = std::move(more), fits = middle;
    }
  }
  return best;
}

}  // namespace pith
