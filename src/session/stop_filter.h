#pragma once
// Holds back text that may become a stop string. Works byte by byte, so what comes out does not
// depend on how the text was cut into tokens. Cost: bytes x stop strings x their length at worst.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pith {

class StopFilter {
 public:
  /// Throws kInvalidArgument for an empty stop string.
  explicit StopFilter(std::span<const std::string> stops);

  /// Takes more text; returns what is certain by now, to be used before the next call. Text up to
  /// the first stop string that is completed comes out; nothing after that.
  std::string_view push(std::string_view text);
  /// No more text: what was held back is certain now.
  std::string_view finish();
  bool stopped() const { return stopped_; }

 private:
  size_t held_back() const;

  std::vector<std::string> stops_;
  std::string pending_;  // not certain yet
  std::string certain_;  // what the last call returned
  bool stopped_ = false;
};

}  // namespace pith
