#pragma once
// The normalizer and the pre-tokenizer of tokenizer.json: how a text becomes the words that BPE
// then looks at one by one. Semantics of the Hugging Face tokenizers library.
// Cost: one pass of ICU's regular expressions over the UTF-16 text for each Split.

#include <unicode/regex.h>
#include <unicode/uniset.h>
#include <unicode/unistr.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizers/split_rules.h"

namespace pith {

/// null, NFC, Prepend, Replace (of a fixed string), or a Sequence of them.
class Normalizer {
 public:
  Normalizer() = default;
  /// Throws kUnsupported for anything else, kCorrupt for missing or mistyped fields.
  explicit Normalizer(const nlohmann::json& spec);

  std::string apply(std::string text) const;

  /// Whether it puts a SentencePiece underline in front of a text.
  bool prepends() const;

 private:
  enum class Kind { kNfc, kPrepend, kReplace };
  struct Step {
    Kind kind;
    std::string from, to;
  };
  void add(const nlohmann::json& spec, int depth);

  std::vector<Step> steps_;
  std::shared_ptr<const icu::UnicodeSet> nfc_characters_;  // null without NFC
};

/// Words of a text, end to end in one buffer: no allocation for each.
struct Words {
  std::string bytes;
  std::vector<size_t> ends;  // [words] end of each in bytes
};

/// null, Split, ByteLevel, Digits, Metaspace, or a Sequence of them.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  explicit PreTokenizer(const nlohmann::json& spec);
  /// Byte-level words by the rules of a name.
  explicit PreTokenizer(const SplitRules& rules);

  /// The words of `text` (valid UTF-8). `first`: it stands at the beginning of the whole input.
  void split(std::string_view text, bool first, Words& out) const;

  bool byte_level() const { return byte_level_; }
  /// Whether it puts a SentencePiece underline in front of a text.
  bool prepends() const { return prepends_; }

 private:
  enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prefix { kNever, kFirst, kAlways };
  struct Step {
    std::unique_ptr<icu::RegexPattern> pattern;  // null: no split here
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    Prefix prefix = Prefix::kNever;
    icu::UnicodeString prefix_text;
    bool replace_spaces = false;  // by prefix_text
  };
  struct Range {
    int32_t begin, end;  // UTF-16 units
    bool match;
  };
  struct Text;

  void add(const nlohmann::json& spec, int depth);
  void add_byte_level(const nlohmann::json& spec);
  void add_metaspace(const nlohmann::json& spec);
  void add_split(const nlohmann::json& spec);
  static void prefix_ranges(const Step& step, bool first, Text& text);
  static void split_ranges(const Step& step, Text& text);
  static void merge(Behavior behavior, std::vector<Range>& ranges);

  std::vector<Step> steps_;
  bool byte_level_ = false;
  bool prepends_ = false;
};

}  // namespace pith
