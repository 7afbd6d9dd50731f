#pragma once
// A source of choices for made-up texts: one Philox word each, so that a text is a pure function of
// its seed. Layer numbers of real caches stay far below kStream.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/philox.h"

namespace pith {

class Dice {
 public:
  /// `use` numbers independent sequences of one seed.
  explicit Dice(uint64_t seed, uint32_t use = 0) : random_(seed, kStream, use) {}
  /// 0 .. n-1. The bias is below n / 2^64.
  size_t below(size_t n) { return random_.word64(next_++) % n; }
  std::string_view of(std::span<const std::string_view> words) {
    return words[below(words.size())];
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  static constexpr uint32_t kStream = 0xFFFD;
  Philox random_;
  uint64_t next_ = 0;
};

}  // namespace pith
