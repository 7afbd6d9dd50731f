#include "model/tokenizers/tokenizer_added.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>

namespace pith {
namespace {

/// \w of Unicode's regular expressions (UTS 18).
bool is_word(UChar32 c) {
  const auto in = [&](UProperty p) { return u_hasBinaryProperty(c, p) != 0; };
  constexpr uint32_t kCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  return in(UCHAR_ALPHABETIC) || in(UCHAR_JOIN_CONTROL) || (U_GET_GC_MASK(c) & kCategories) != 0;
}

/// The character before `end`, whose first byte goes to *start.
UChar32 previous(std::string_view text, size_t end, size_t* start) {
  int32_t at = static_cast<int32_t>(end);
  UChar32 c;
  U8_PREV(text.data(), 0, at, c);
  *start = static_cast<size_t>(at);
  return c;
}

UChar32 next(std::string_view text, size_t start, size_t* end) {
  int32_t at = static_cast<int32_t>(start);
  const int32_t size = static_cast<int32_t>(text.size());
  UChar32 c;
  U8_NEXT(text.data(), at, size, c);
  *end = static_cast<size_t>(at);
  return c;
}

bool touches_word(std::string_view text, size_t begin, size_t end) {
  size_t unused;
  return (begin > 0 && is_word(previous(text, begin, &unused))) ||
         (end < text.size() && is_word(next(text, end, &unused)));
}

/// Moves `begin` left over white space, but not before `limit`.
size_t strip_left(std::string_view text, size_t begin, size_t limit) {
  size_t at;
  while (begin > limit && u_isUWhiteSpace(previous(text, begin, &at))) begin = at;
  return begin;
}

size_t strip_right(std::string_view text, size_t end) {
  size_t at;
  while (end < text.size() && u_isUWhiteSpace(next(text, end, &at))) end = at;
  return end;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& t) { return t.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  for (int32_t i = 0; i < static_cast<int32_t>(tokens_.size()); ++i) {
    auto& range = first_[static_cast<uint8_t>(tokens_[i].content[0])];
    if (range.second == 0) range.first = i;
    range.second = i + 1;
  }
}

const AddedToken* AddedTokenFinder::longest_at(std::string_view text) const {
  auto [low, high] = first_[static_cast<uint8_t>(text[0])];
  const AddedToken* best = nullptr;
  // tokens_[low, high) share text's first `depth` bytes; a token of just those comes first.
  for (size_t depth = 1; low < high; ++depth) {
    if (tokens_[low].content.size() == depth) {
      best = &tokens_[low];
      while (low < high && tokens_[low].content.size() == depth) ++low;
    }
    if (depth == text.size()) break;
    const auto byte = static_cast<uint8_t>(text[depth]);
    const auto at = [&](const AddedToken& t) { return static_cast<uint8_t>(t.content[depth]); };
    const auto first = tokens_.begin() + low, last = tokens_.begin() + high;
    low += static_cast<int32_t>(
        std::partition_point(first, last, [&](const AddedToken& t) { return at(t) < byte; }) -
        first);
    high = static_cast<int32_t>(
        std::partition_point(tokens_.begin() + low, last,
                             [&](const AddedToken& t) { return at(t) == byte; }) -
        tokens_.begin());
  }
  return best;
}

bool lies_within(size_t begin, size_t end, std::span<const TextSpan> spans) {
  const auto after =
      std::upper_bound(spans.begin(), spans.end(), begin,
                       [](size_t at, const TextSpan& span) { return at < span.begin; });
  return after != spans.begin() && end <= (after - 1)->end;
}

std::vector<Section> AddedTokenFinder::split(std::string_view text,
                                             std::span<const TextSpan> trusted) const {
  std::vector<Section> out;
  size_t done = 0;  // everything before is in `out`
  for (size_t at = 0; at < text.size() && !tokens_.empty();) {
    const auto& range = first_[static_cast<uint8_t>(text[at])];
    const AddedToken* token = range.second == 0 ? nullptr : longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    // A match that is refused below still hides what begins inside it, as in the library.
    at = end;
    if (begin < done) continue;  // swallowed as white space by the token before
    if (token->special && !lies_within(begin, end, trusted)) {
      // Where some are trusted, text must not hide a token that begins in it and is.
      if (!trusted.empty()) at = begin + 1;
      continue;
    }
    if (token->single_word && touches_word(text, begin, end)) continue;
    if (token->lstrip) begin = strip_left(text, begin, done);
    if (token->rstrip) end = strip_right(text, end);
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, token->id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
  return out;
}

}  // namespace pith
