#pragma once
// Words and identifiers for made-up tasks; every one is drawn from a Dice.

#include <set>
#include <string>
#include <vector>

#include "tools/eval/dice.h"

namespace pith {

/// One of 64 plain English words, as the demo's document uses.
std::string_view plain_word(Dice& dice);
/// "silver-window": two different plain words.
std::string word_pair(Dice& dice);
/// `count` different pronounceable words of two or three syllables.
std::vector<std::string> made_words(Dice& dice, size_t count);
/// `length` letters from 'a' or 'A' on.
std::string letters(Dice& dice, size_t length, char first);
/// A number of `digits` digits, the first not 0.
std::string digits(Dice& dice, size_t count);
/// 8-4-4-4-12 hexadecimal digits, version 4.
std::string uuid(Dice& dice);

/// Draws from `make` until the result is not in `used`, and puts it there.
template <class F>
std::string fresh(std::set<std::string>& used, F&& make) {
  for (;;) {
    std::string word = make();
    if (used.insert(word).second) return word;
  }
}

}  // namespace pith
