#include "chat/text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>

namespace pith::chat {

Text::Text(std::string bytes, Origin origin) : bytes_(std::move(bytes)) {
  if (!bytes_.empty()) runs_.push_back({bytes_.size(), origin});
}

void Text::append(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  bytes_ += bytes;
  if (!runs_.empty() && runs_.back().origin == origin)
    runs_.back().end = bytes_.size();
  else
    runs_.push_back({bytes_.size(), origin});
}

void Text::append(const Text& other, size_t begin, size_t end) {
  const auto first = std::upper_bound(other.runs_.begin(), other.runs_.end(), begin,
                                      [](size_t at, const Run& run) { return at < run.end; });
  for (auto run = first; run != other.runs_.end() && begin < end; ++run) {
    const size_t stop = std::min(run->end, end);
    append(std::string_view(other.bytes_).substr(begin, stop - begin), run->origin);
    begin = stop;
  }
}

Text Text::slice(size_t begin, size_t end) const {
  Text out;
  out.markup_ = markup_;
  out.append(*this, begin, end);
  return out;
}

Text Text::as_markup() const {
  Text out = *this;
  out.markup_ = true;
  return out;
}

Text escape(const Text& text) {
  if (text.is_markup()) return text;
  Text out;
  const std::string& bytes = text.bytes();
  size_t done = 0;
  for (size_t at; (at = bytes.find_first_of("&<>'\"", done)) != bytes.npos; done = at + 1) {
    out.append(text, done, at);
    const char c = bytes[at];
    const Text::Run& run =
        *std::upper_bound(text.runs().begin(), text.runs().end(), at,
                          [](size_t place, const Text::Run& one) { return place < one.end; });
    out.append(c == '&'    ? "&amp;"
               : c == '<'  ? "&lt;"
               : c == '>'  ? "&gt;"
               : c == '\'' ? "&#39;"
                           : "&#34;",
               run.origin);
  }
  out.append(text, done, bytes.size());
  return out.as_markup();
}

size_t find_in(std::string_view text, std::string_view wanted, size_t from) noexcept {
  if (from > text.size()) return text.npos;
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  return found == nullptr ? text.npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last_in(std::string_view text, std::string_view wanted) {
  const std::string turned(text.rbegin(), text.rend()), end(wanted.rbegin(), wanted.rend());
  const size_t found = find_in(turned, end);
  return found == text.npos ? found : text.size() - found - wanted.size();
}

size_t count_characters(std::string_view text) noexcept {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

size_t character_size(std::string_view text, size_t at) noexcept {
  const size_t start = at++;
  while (at < text.size() && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) ++at;
  return at - start;
}

size_t offset_of(std::string_view text, size_t index) noexcept {
  size_t at = 0;
  while (index > 0 && at < text.size()) {
    at += character_size(text, at);
    --index;
  }
  return at;
}

char32_t character_at(std::string_view text, size_t at) noexcept {
  UChar32 c = 0;
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  // Its places are signed.
  U8_GET(bytes, 0, at, static_cast<int64_t>(text.size()), c);
  return static_cast<char32_t>(c);
}

// Python counts the separators 0x1C to 0x1F, which Unicode's White_Space does not.
bool is_space(char32_t c) noexcept {
  return (c >= 0x1C && c <= 0x1F) || u_isUWhiteSpace(static_cast<UChar32>(c));
}

bool is_letter(char32_t c) noexcept {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_L_MASK) != 0;
}

bool is_alphanumeric(char32_t c) noexcept {
  return is_letter(c) || u_charDigitValue(static_cast<UChar32>(c)) >= 0 ||
         (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0;
}

namespace {
int32_t numeric_type(char32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_NUMERIC_TYPE);
}
}  // namespace

bool is_decimal(char32_t c) noexcept { return numeric_type(c) == U_NT_DECIMAL; }
bool is_digit(char32_t c) noexcept { return is_decimal(c) || numeric_type(c) == U_NT_DIGIT; }
bool is_numeric(char32_t c) noexcept { return numeric_type(c) != U_NT_NONE; }

bool is_printable(char32_t c) noexcept {
  constexpr uint32_t kHidden = U_GC_C_MASK | U_GC_Z_MASK;
  return c == ' ' || (U_GET_GC_MASK(static_cast<UChar32>(c)) & kHidden) == 0;
}

std::vector<Line> split_lines(std::string_view text) {
  std::vector<Line> out;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const char32_t c = character_at(text, at);
    const bool ends = (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    const size_t end = at;
    at += text.substr(at, 2) == "\r\n" ? 2 : character_size(text, at);
    if (!ends) continue;
    out.push_back({begin, end, at});
    begin = at;
  }
  if (begin < text.size()) out.push_back({begin, text.size(), text.size()});
  return out;
}

namespace {

size_t previous_start(std::string_view text, size_t end) noexcept {
  do {
    --end;
  } while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80);
  return end;
}

bool contains(std::string_view set, std::string_view character) {
  return set.find(character) != std::string_view::npos;
}

}  // namespace

Text strip(const Text& text, bool left, bool right, const Text* set) {
  const std::string_view bytes = text.bytes();
  std::unordered_set<std::string_view> characters;
  for (size_t at = 0; set != nullptr && at < set->size();) {
    const size_t size = character_size(set->bytes(), at);
    characters.insert(std::string_view(set->bytes()).substr(at, size));
    at += size;
  }
  const auto drops = [&](size_t at, size_t size) {
    return set == nullptr ? is_space(character_at(bytes, at))
                          : characters.contains(bytes.substr(at, size));
  };
  size_t begin = 0, end = bytes.size();
  while (left && begin < end) {
    const size_t size = character_size(bytes, begin);
    if (!drops(begin, size)) break;
    begin += size;
  }
  while (right && begin < end) {
    const size_t start = previous_start(bytes, end);
    if (!drops(start, end - start)) break;
    end = start;
  }
  return text.slice(begin, end);
}

Text replace(const Text& text, std::string_view from, const Text& to, int64_t count) {
  const std::string_view bytes = text.bytes();
  Text out;
  size_t done = 0;
  if (from.empty()) {  // between all characters and at both ends, as in Python
    for (size_t at = 0; count != 0; --count) {
      out.append(to);
      if (at == bytes.size()) break;
      const size_t size = character_size(bytes, at);
      out.append(text, at, at + size);
      done = at += size;
    }
  } else {
    for (size_t at; count != 0 && (at = find_in(bytes, from, done)) != bytes.npos; --count) {
      out.append(text, done, at);
      out.append(to);
      done = at + from.size();
    }
  }
  out.append(text, done, bytes.size());
  return out;
}

namespace {

std::string with_case(std::string_view bytes, Case form) {
  icu::UnicodeString wide = icu::UnicodeString::fromUTF8(
      icu::StringPiece(bytes.data(), static_cast<int32_t>(bytes.size())));
  const icu::Locale& root = icu::Locale::getRoot();
  if (form == Case::kUpper) wide.toUpper(root);
  if (form == Case::kLower) wide.toLower(root);
  if (form == Case::kTitle) wide.toTitle(nullptr, root);
  std::string out;
  return wide.toUTF8String(out);
}

/// A letter within a word becomes small, any other large.
std::string with_title(std::string_view bytes, bool& within, Case form) {
  std::string out;
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = character_size(bytes, at);
    const auto character = bytes.substr(at, size);
    const bool whole = size == 1 || form == Case::kWords;
    const Case capital = whole ? Case::kUpper : Case::kTitle;
    out += with_case(character, within ? Case::kLower : capital);
    const char32_t c = character_at(bytes, at);
    within = form == Case::kCapitalize ||
             (form == Case::kTitle ? u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED) != 0
                                   : !is_space(c) && !contains("-({[<", character));
    at += size;
  }
  return out;
}

}  // namespace

Text change_case(const Text& text, Case form) {
  Text out;
  size_t begin = 0;
  bool within = false;
  for (const Text::Run& run : text.runs()) {
    const auto part = std::string_view(text.bytes()).substr(begin, run.end - begin);
    const bool whole = form == Case::kUpper || form == Case::kLower;
    out.append(whole ? with_case(part, form) : with_title(part, within, form), run.origin);
    begin = run.end;
  }
  return out;
}

}  // namespace pith::chat
