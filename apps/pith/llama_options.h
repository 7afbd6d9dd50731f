#pragma once
// Options that fingers know from llama.cpp and a command of pith does not have: recognised, since
// CLI11 would read -ngl as -n with the value "gl". Those on which no answer depends are left out
// with one warning; the others are refused together, with what pith has instead.

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pith::cli {

class LlamaOptions {
 public:
  explicit LlamaOptions(std::string command) : command_(std::move(command)) {}

  /// How many of `arguments`, which begin with an option that the command does not have, are one of
  /// llama.cpp's with its value; 0 if it is none.
  size_t take(std::span<const std::string> arguments);
  /// Says what was left out. Throws CLI::ParseError if an option was taken that is refused.
  void settle() const;

 private:
  std::string command_;
  std::vector<std::string> ignored_, refused_;
};

/// The codec that stands for llama.cpp's cache type "q8_0" or "q4_0"; null for any other.
const char* codec_of_type(std::string_view type);

/// The advice instead of llama.cpp's cache type `type` ("q5_1"), given by -ctk or -ctv; empty if it
/// is none of its types.
std::string instead_of_type(std::string_view option, std::string_view type);

}  // namespace pith::cli
