#include "tools/eval/words.h"

#include <array>

namespace pith {
namespace {

constexpr std::array<std::string_view, 64> kWords{
    "silver",  "window",  "garden",  "winter",  "bridge",  "candle",  "forest",  "letter",
    "morning", "shadow",  "summer",  "thunder", "castle",  "feather", "kitchen", "lantern",
    "meadow",  "mirror",  "orange",  "pocket",  "river",   "saddle",  "tower",   "velvet",
    "village", "whisper", "yellow",  "anchor",  "basket",  "copper",  "dinner",  "engine",
    "finger",  "gentle",  "hammer",  "island",  "jacket",  "kettle",  "ladder",  "market",
    "needle",  "ocean",   "palace",  "quarter", "ribbon",  "school",  "temple",  "valley",
    "wagon",   "autumn",  "blanket", "corner",  "desert",  "eagle",   "flower",  "golden",
    "honest",  "iron",    "journey", "knight",  "leather", "marble",  "narrow",  "paper"};

constexpr std::string_view kConsonants = "bdfgklmnprstvz", kVowels = "aeiou";

}  // namespace

std::string_view plain_word(Dice& dice) { return dice.of(kWords); }

std::string word_pair(Dice& dice) {
  for (;;) {
    const auto a = plain_word(dice), b = plain_word(dice);
    if (a != b) return std::string(a) + "-" + std::string(b);
  }
}

std::vector<std::string> made_words(Dice& dice, size_t count) {
  std::set<std::string> used;
  std::vector<std::string> words;
  while (words.size() < count) {
    words.push_back(fresh(used, [&] {
      std::string word;
      for (size_t syllables = 2 + dice.below(2); syllables > 0; --syllables) {
        word += kConsonants[dice.below(kConsonants.size())];
        word += kVowels[dice.below(kVowels.size())];
      }
      return word + kConsonants[dice.below(kConsonants.size())];
    }));
  }
  return words;
}

std::string letters(Dice& dice, size_t length, char first) {
  std::string out;
  for (size_t i = 0; i < length; ++i) out += static_cast<char>(first + dice.below(26));
  return out;
}

std::string digits(Dice& dice, size_t count) {
  std::string out(1, static_cast<char>('1' + dice.below(9)));
  while (out.size() < count) out += static_cast<char>('0' + dice.below(10));
  return out;
}

std::string uuid(Dice& dice) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (size_t i = 0; i < 36; ++i) {
    if (i == 8 || i == 13 || i == 18 || i == 23) {
      out += '-';
    } else if (i == 14) {
      out += '4';
    } else {
      out += kHex[i == 19 ? 8 + dice.below(4) : dice.below(16)];
    }
  }
  return out;
}

}  // namespace pith
