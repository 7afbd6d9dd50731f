#pragma once
// Added tokens: strings that become one id wherever they stand in a text, before anything else
// looks at it (special tokens such as <|eot_id|>, and others). Semantics of the Hugging Face
// tokenizers library's AddedVocabulary. Cost: one table look-up per byte that starts no token.

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pith {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;      // left out by decode(ids, skip_special)
  bool lstrip = false;       // swallows white space on its left
  bool rstrip = false;       // and on its right
  bool normalized = false;   // is looked for in the normalized text
  bool single_word = false;  // only where no word character touches it
};

/// Bytes [begin, end) of a text.
struct TextSpan {
  size_t begin = 0, end = 0;
};

/// A stretch of a text: an added token, or text between them.
struct Section {
  size_t begin, end;  // bytes of the text
  int32_t token;      // id, or -1 for text
};

/// True if [begin, end) lies within one of the spans, which are in order and apart.
bool lies_within(size_t begin, size_t end, std::span<const TextSpan> spans);

/// Finds added tokens in a text: leftmost first, and the longest of those.
class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);

  /// The sections of `text`, in order. Special tokens stay text unless they lie within a span of
  /// `trusted`.
  std::vector<Section> split(std::string_view text, std::span<const TextSpan> trusted) const;

  bool empty() const { return tokens_.empty(); }

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;                        // sorted by content
  std::array<std::pair<int32_t, int32_t>, 256> first_{};  // range of tokens by first byte
};

}  // namespace pith
