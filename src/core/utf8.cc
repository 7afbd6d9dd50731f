#include "core/utf8.h"

#include "pith/utf8.h"

namespace pith {
namespace {

constexpr std::string_view kUnderline = "\xE2\x96\x81";  // U+2581

/// The byte that "<0x0A>" stands for, or -1.
int byte_of(std::string_view token) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return -1;
  const size_t high = kHex.find(token[3]), low = kHex.find(token[4]);
  if (high == kHex.npos || low == kHex.npos) return -1;
  return static_cast<int>(high * 16 + low);
}

}  // namespace

Utf8Step utf8_step(std::string_view text) noexcept {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, Utf8Kind::kValid};
  if (lead < 0xC2 || lead > 0xF4) return {1, Utf8Kind::kInvalid};
  const uint8_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and what lies past U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (uint8_t i = 1; i < length; ++i) {
    if (i >= text.size()) return {i, Utf8Kind::kCut};
    const bool fits = i == 1 ? low <= byte(1) && byte(1) <= high : (byte(i) & 0xC0) == 0x80;
    if (!fits) return {i, Utf8Kind::kInvalid};
  }
  return {length, Utf8Kind::kValid};
}

bool is_utf8(std::string_view text) noexcept {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    if (step.kind != Utf8Kind::kValid) return false;
    text.remove_prefix(step.length);
  }
  return true;
}

std::string to_utf8(std::string_view text) {
  Utf8Stream stream;
  std::string out = stream.push(text);
  out += stream.flush();
  return out;
}

void append_utf8(std::string& out, char32_t code) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | (code >> 6));
  } else if (code < 0x10000) {
    put(0xE0 | (code >> 12));
    put(0x80 | ((code >> 6) & 0x3F));
  } else {
    put(0xF0 | (code >> 18));
    put(0x80 | ((code >> 12) & 0x3F));
    put(0x80 | ((code >> 6) & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

std::string sentencepiece_bytes(std::string_view piece, bool byte_tokens) {
  const int byte = byte_tokens ? byte_of(piece) : -1;
  if (byte >= 0) return std::string(1, static_cast<char>(byte));
  std::string out;
  size_t at = 0;
  for (size_t hit; (hit = piece.find(kUnderline, at)) != piece.npos; at = hit + kUnderline.size()) {
    out.append(piece, at, hit - at).push_back(' ');
  }
  return out.append(piece, at);
}

std::string Utf8Stream::push(std::string_view bytes) {
  std::string out;
  out.reserve(held_.size() + bytes.size());
  const std::string joined = held_.empty() ? std::string() : held_ + std::string(bytes);
  std::string_view rest = held_.empty() ? bytes : std::string_view(joined);
  held_.clear();
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Kind::kCut) {
      held_ = rest;
      break;
    }
    out += step.kind == Utf8Kind::kValid ? rest.substr(0, step.length) : kReplacement;
    rest.remove_prefix(step.length);
  }
  return out;
}

std::string Utf8Stream::flush() {
  // A held prefix is one maximal subpart: one replacement character.
  const bool cut = !held_.empty();
  held_.clear();
  return cut ? std::string(kReplacement) : std::string();
}

}  // namespace pith
