#pragma once
// How byte-level BPE cuts a text into words before it merges, by the names under which GGUF files
// keep it (tokenizer.ggml.pre). tokenizer.json spells the same rules out as regular expressions;
// those that it only names (ByteLevel, Digits) are taken from here.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace pith {

/// The rule of ByteLevel when use_regex is set: the pattern of GPT-2.
extern const std::string_view kGpt2Pattern;
/// The rule of Digits.
extern const std::string_view kDigitPattern;

struct SplitRules {
  std::span<const std::string_view> names;     // of tokenizer.ggml.pre
  std::span<const std::string_view> patterns;  // each cuts what the one before left whole
  bool ignore_merges = false;                  // a word that is a token is taken as it is
  bool add_bos = false;                        // unless the file says otherwise
  bool nfc = false;                            // the models' tokenizer.json normalizes
};

/// The rules of a name. Throws kUnsupported, with the names that are known, for any other.
const SplitRules& split_rules(std::string_view pre);

/// The rules with these patterns and properties, or null.
const SplitRules* find_split_rules(std::span<const std::string> patterns, bool ignore_merges,
                                   bool nfc);

/// All names, for messages.
std::string split_rule_names();

}  // namespace pith
