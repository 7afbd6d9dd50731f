// RULER's six tasks that need no data. Templates, counts, the length budget (question and answer
// included) and the metric are RULER's; words and random numbers are ours.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tools/eval/task_parts.h"

namespace pith {
namespace {

std::string needle(std::string_view kind, const std::string& key, const std::string& value) {
  return fmt::format("One of the special magic {} for {} is: {}.", kind, key, value);
}

// One needle asked for: RULER's template in its singular form. `kind` ends in "s".
Sample niah(std::string context, const std::string& kind, const std::string& key,
            const std::string& value) {
  const std::string one = kind.substr(0, kind.size() - 1);
  Sample sample;
  sample.max_tokens = 128;
  sample.context = fmt::format(
      "A special magic {0} is hidden within the following text. Make sure to memorize it. I will "
      "quiz you about the {0} afterwards.\n{1}\n",
      one, context);
  sample.turns = {{fmt::format("What is the special magic {0} for {1} mentioned in the provided "
                               "text? The special magic {0} for {1} mentioned in the provided text "
                               "is",
                               one, key),
                   {value},
                   {}}};
  return sample;
}

// `size` needles, of which one is asked for.
Sample needle_haystack(const SampleRequest& request, std::string_view task, const char* kind,
                       std::string (*key)(Dice&), std::string (*value)(Dice&)) {
  return largest_sample(request, 4, [&](size_t size) {
    Dice dice = sample_dice(task, request);
    const std::string wanted_key = key(dice), wanted_value = value(dice);
    const uint64_t depth = dice.below(uint64_t{1} << 32);
    std::set<std::string> used{wanted_key};
    std::vector<std::string> lines;
    // A list of pairs is finite: longer haystacks use keys twice, the wanted one never.
    for (size_t i = 0; i < size; ++i) {
      std::string k = key(dice);
      while (k == wanted_key) k = key(dice);
      lines.push_back(needle(kind, k, value(dice)));
    }
    const auto at = static_cast<std::ptrdiff_t>((depth * (size + 1)) >> 32);
    lines.insert(lines.begin() + at, needle(kind, wanted_key, wanted_value));
    return niah(fmt::format("{}", fmt::join(lines, " ")), kind, wanted_key, wanted_value);
  });
}

std::string seven_digits(Dice& dice) { return digits(dice, 7); }

// One chain of five variables in `noise` lines.
struct Chain {
  std::string text, value;
  std::vector<std::string> names;
};

Chain make_chain(Dice& dice, size_t noise, size_t name_length) {
  constexpr size_t kNames = 5;
  Chain chain;
  std::set<std::string> used;
  while (chain.names.size() < kNames)
    chain.names.push_back(fresh(used, [&] { return letters(dice, name_length, 'A'); }));
  chain.value = digits(dice, 5);
  std::vector<uint64_t> depths;
  for (size_t i = 0; i < kNames; ++i) depths.push_back(dice.below(uint64_t{1} << 32));
  std::sort(depths.begin(), depths.end());
  std::vector<std::string> lines(noise, std::string(kNoise));
  for (size_t i = kNames; i-- > 0;) {
    const std::string from = i == 0 ? chain.value : "VAR " + chain.names[i - 1] + " ";
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>((depths[i] * (noise + 1)) >> 32),
                 fmt::format("VAR {} = {}", chain.names[i], from));
  }
  chain.text = fmt::format("{}", fmt::join(lines, "\n"));
  return chain;
}

std::string chain_context(const Chain& c) {
  return "Memorize and track the chain(s) of variable assignment hidden in the following "
         "text.\n\n" +
         c.text;
}

std::string chain_question(const Chain& c) {
  return fmt::format(
      "\nQuestion: Find all variables that are assigned the value {0} in the text above. Answer: "
      "According to the chain(s) of variable assignment in the text above, {1} variables are "
      "assigned the value {0}, they are: ",
      c.value, c.names.size());
}

// A numbered list with `common` and `rare` words as often as said, shuffled.
struct WordList {
  std::string text;
  std::vector<std::string> common;
};

WordList make_list(Dice& dice, size_t words, size_t common_count, size_t rare_count) {
  constexpr size_t kCommon = 10;
  const auto all = made_words(dice, words);
  WordList list;
  list.common.assign(all.begin(), all.begin() + kCommon);
  std::vector<std::string> items;
  for (size_t i = 0; i < words; ++i)
    items.insert(items.end(), i < kCommon ? common_count : rare_count, all[i]);
  dice.shuffle(items);
  for (size_t i = 0; i < items.size(); ++i)
    list.text += fmt::format("{}{}. {}", i > 0 ? " " : "", i + 1, items[i]);
  return list;
}

constexpr std::string_view kListHead =
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n";
constexpr std::string_view kListQuestion =
    "\nQuestion: What are the 10 most common words in the above list? Answer: The top 10 words "
    "that appear most often in the list are:";

}  // namespace

Sample make_niah_single_1(const SampleRequest& request) {
  return largest_sample(request, 1, [&](size_t size) {
    Dice dice = sample_dice("niah_single_1", request);
    const std::string key = word_pair(dice), value = seven_digits(dice);
    std::vector<std::string> lines(size, std::string(kNoise));
    const uint64_t depth = dice.below(uint64_t{1} << 32);
    lines.insert(lines.begin() + static_cast<std::ptrdiff_t>((depth * (size + 1)) >> 32),
                 needle("numbers", key, value));
    return niah(fmt::format("{}", fmt::join(lines, "\n")), "numbers", key, value);
  });
}

Sample make_niah_multikey_2(const SampleRequest& request) {
  return needle_haystack(request, "niah_multikey_2", "numbers", word_pair, seven_digits);
}

Sample make_niah_multikey_3(const SampleRequest& request) {
  return needle_haystack(request, "niah_multikey_3", "uuids", uuid, uuid);
}

Sample make_vt(const SampleRequest& request) {
  return largest_sample(request, 1, [&](size_t size) {
    Dice dice = sample_dice("vt", request);
    const Chain example = make_chain(dice, 5, 3), chain = make_chain(dice, size, 5);
    Sample sample;
    sample.max_tokens = 30;
    sample.context = fmt::format("{}{}{}\n\n{}", chain_context(example), chain_question(example),
                                 fmt::join(example.names, " "), chain_context(chain));
    sample.turns = {{chain_question(chain), chain.names, {}}};
    return sample;
  });
}

Sample make_cwe(const SampleRequest& request) {
  const bool small = request.tokens < 4096;
  return largest_sample(request, 11, [&](size_t size) {
    Dice dice = sample_dice("cwe", request);
    const WordList example = make_list(dice, 40, 10, 3);
    const WordList list = make_list(dice, size, small ? 6 : 30, small ? 1 : 3);
    std::string answer;
    for (size_t i = 0; i < example.common.size(); ++i)
      answer += fmt::format(" {}. {}", i + 1, example.common[i]);
    Sample sample;
    sample.max_tokens = 120;
    sample.context = fmt::format("{0}{1}{2}{3}\n{0}{4}", kListHead, example.text, kListQuestion,
                                 answer, list.text);
    sample.turns = {{std::string(kListQuestion), list.common, {}}};
    return sample;
  });
}

Sample make_fwe(const SampleRequest& request) {
  constexpr double kZeta2 = std::numbers::pi * std::numbers::pi / 6;
  const size_t vocabulary = std::max<size_t>(4, request.tokens / 50);
  return largest_sample(request, 64, [&](size_t size) {
    Dice dice = sample_dice("fwe", request);
    std::set<std::string> used;
    std::vector<std::string> words, items;
    while (words.size() < vocabulary)
      words.push_back(fresh(used, [&] { return letters(dice, 6, 'a'); }));
    words[0] = "...";  // the most frequent one is noise
    for (size_t k = 1; k <= vocabulary; ++k) {
      const double share = std::pow(static_cast<double>(k), -2.0) / kZeta2;
      items.insert(items.end(), static_cast<size_t>(static_cast<double>(size) * share),
                   words[k - 1]);
    }
    dice.shuffle(items);
    Sample sample;
    sample.max_tokens = 50;
    sample.context = fmt::format(
        "Read the following coded text and track the frequency of each coded word. Find the three "
        "most frequently appeared coded words. {}",
        fmt::join(items, " "));
    sample.turns = {
        {"\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the "
         "three most frequently appeared words in the above coded text? Answer: According to the "
         "coded text above, the three most frequently appeared words are:",
         {words[1], words[2], words[3]},
         {}}};
    return sample;
  });
}

}  // namespace pith
