#include "tools/eval/document.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <string_view>

#include "tools/eval/words.h"

namespace pith {
namespace {

using Words = std::span<const std::string_view>;

constexpr std::array<std::string_view, 24> kPeople{
    "the captain",  "the old miller", "her brother",   "the doctor",   "a young clerk",
    "the gardener", "his neighbour",  "the innkeeper", "the widow",    "our teacher",
    "the farmer",   "a stranger",     "the baker",     "the lady",     "the boatman",
    "my cousin",    "the priest",     "the merchant",  "the soldier",  "an old servant",
    "the painter",  "the judge",      "the shepherd",  "the carpenter"};
constexpr std::array<std::string_view, 24> kDeeds{
    "walked slowly to",     "came back from",         "looked for a long time at",
    "spoke of nothing but", "had often dreamed of",   "never went near",
    "was sent to",          "waited before",          "told everybody about",
    "remembered",           "had lost the way to",    "rode past",
    "could not forget",     "stood in front of",      "asked the way to",
    "had been afraid of",   "was very proud of",      "wished to see",
    "hurried away from",    "wrote a letter about",   "sat down beside",
    "turned towards",       "said a few words about", "left early for"};
constexpr std::array<std::string_view, 24> kPlaces{
    "the mill",      "the harbour",    "the great house", "the little church", "the garden",
    "the river",     "the market",     "the old bridge",  "the open window",   "the village",
    "the long road", "the empty room", "the castle",      "the orchard",       "the kitchen",
    "the hill",      "the station",    "the white gate",  "the forest",        "the library",
    "the shore",     "the inn",        "the stone wall",  "the stable"};
constexpr std::array<std::string_view, 20> kTimes{
    "in the morning",     "before the winter came", "when the bells rang",
    "on the third day",   "as the rain began",      "after supper",
    "without a word",     "at the end of the week", "while the others slept",
    "with a heavy heart", "in the summer",          "long before sunrise",
    "for the last time",  "as he had promised",     "with great care",
    "under a grey sky",   "in spite of the cold",   "to everyone's surprise",
    "by candlelight",     "when the work was done"};
constexpr std::array<std::string_view, 16> kRemarks{"Nobody knew the reason.",
                                                    "It was a very quiet evening.",
                                                    "The wind blew from the sea.",
                                                    "Nothing more was said that night.",
                                                    "The dog barked twice.",
                                                    "There was a light in the window.",
                                                    "It had been raining since noon.",
                                                    "The clock struck nine.",
                                                    "A cart went by.",
                                                    "The fire had gone out.",
                                                    "They had all the time they needed.",
                                                    "Somebody laughed in the next room.",
                                                    "The letter lay on the table.",
                                                    "It was colder than the day before.",
                                                    "The road was white with dust.",
                                                    "The children were already asleep."};
std::string capitalised(std::string_view text) {
  std::string out(text);
  if (out[0] >= 'a' && out[0] <= 'z') out[0] = static_cast<char>(out[0] - 'a' + 'A');
  return out;
}

std::string make_sentence(Dice& dice) {
  const auto who = dice.of(kPeople), other = dice.of(kPeople), deed = dice.of(kDeeds);
  const auto where = dice.of(kPlaces), there = dice.of(kPlaces), when = dice.of(kTimes);
  switch (dice.below(6)) {
    case 0: return capitalised(fmt::format("{} {} {} {}.", who, deed, where, when));
    case 1: return capitalised(fmt::format("{}, {} {} {}.", when, who, deed, where));
    case 2:
      return capitalised(
          fmt::format("{} {} {}, but {} {} {}.", who, deed, where, other, dice.of(kDeeds), there));
    case 3: return fmt::format("It was {} who {} {} {}.", who, deed, where, when);
    case 4:
      return capitalised(
          fmt::format("between {} and {} {} met {} {}.", where, there, who, other, when));
    default: return std::string(dice.of(kRemarks));
  }
}

std::vector<HiddenFact> make_facts(Dice& dice, size_t count) {
  std::vector<HiddenFact> facts;
  std::set<std::string> used;
  while (facts.size() < count) {
    const std::string key = fresh(used, [&] { return word_pair(dice); });
    HiddenFact fact;
    fact.key = key;
    fact.value = std::to_string(1000000 + dice.below(9000000));
    fact.depth = (static_cast<double>(facts.size()) + 0.5) / static_cast<double>(count);
    facts.push_back(fact);
  }
  return facts;
}

}  // namespace

std::string HiddenFact::question() const {
  return fmt::format(
      "\nWhat are all the special magic numbers for {0} mentioned in the provided text? The "
      "special "
      "magic numbers for {0} mentioned in the provided text are",
      key);
}

DemoDocument make_document(size_t tokens, size_t facts, uint64_t seed,
                           const std::function<size_t(const std::string&)>& count_tokens) {
  Dice dice(seed);
  DemoDocument document;
  document.facts = make_facts(dice, facts);
  document.text =
      "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
      "I will quiz you about the numbers afterwards.\n";
  size_t length = count_tokens(document.text), next = 0, in_paragraph = 0;
  while (length < tokens) {
    std::string sentence;
    const bool due = next < facts && static_cast<double>(length) >=
                                         document.facts[next].depth * static_cast<double>(tokens);
    if (due) {
      const HiddenFact& fact = document.facts[next++];
      sentence =
          fmt::format("One of the special magic numbers for {} is: {}.", fact.key, fact.value);
    } else {
      sentence = make_sentence(dice);
    }
    const bool new_paragraph = in_paragraph >= 6 && dice.below(5) == 0;
    in_paragraph = new_paragraph ? 0 : in_paragraph + 1;
    sentence = (new_paragraph ? "\n" : document.text.ends_with('\n') ? "" : " ") + sentence;
    length += count_tokens(sentence);
    document.text += sentence;
  }
  return document;
}

}  // namespace pith
