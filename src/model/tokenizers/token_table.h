#pragma once
// The strings of a vocabulary, packed: end to end in one buffer, numbered in the order in which
// they were added, found by open addressing. A vocabulary of 49152 tokens takes 1.1 MB, where a map
// of strings takes 3.9; of Gemma's 262144 it is 6 and 21.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace pith {

/// Strings one after the other, up to 4 GiB of them.
class PackedStrings {
 public:
  void reserve(size_t strings, size_t bytes);
  /// Throws kUnsupported past 4 GiB.
  void add(std::string_view text);
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return {bytes_.data() + begin, ends_[i] - begin};
  }
  size_t size() const { return ends_.size(); }

 private:
  std::string bytes_;
  std::vector<uint32_t> ends_;
};

class TokenTable {
 public:
  /// Room for this many tokens of this many bytes together.
  void reserve(size_t tokens, size_t bytes);
  /// The text's number, and whether it is new.
  std::pair<int32_t, bool> add(std::string_view text);
  /// The text's number, or -1.
  int32_t find(std::string_view text) const noexcept;
  std::string_view operator[](size_t i) const { return strings_[i]; }
  size_t size() const { return strings_.size(); }

 private:
  size_t slot_of(std::string_view text) const noexcept;
  void grow(size_t slots);

  PackedStrings strings_;
  std::vector<int32_t> slots_;  // [power of two] numbers of strings, -1: free
};

}  // namespace pith
