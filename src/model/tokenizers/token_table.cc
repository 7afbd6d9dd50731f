#include "model/tokenizers/token_table.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>

#include "pith/error.h"

namespace pith {

void PackedStrings::reserve(size_t strings, size_t bytes) {
  ends_.reserve(strings);
  bytes_.reserve(bytes);
}

void PackedStrings::add(std::string_view text) {
  if (text.size() > UINT32_MAX - bytes_.size()) {
    throw Error(ErrorCode::kUnsupported, "a vocabulary of more than 4 GiB; supported: up to that");
  }
  bytes_ += text;
  ends_.push_back(static_cast<uint32_t>(bytes_.size()));
}

void TokenTable::reserve(size_t tokens, size_t bytes) {
  strings_.reserve(tokens, bytes);
  // Two thirds full at most.
  const size_t slots = std::bit_ceil(std::max<size_t>(16, tokens + tokens / 2 + 1));
  if (slots > slots_.size()) grow(slots);
}

std::pair<int32_t, bool> TokenTable::add(std::string_view text) {
  if (3 * (strings_.size() + 1) > 2 * slots_.size()) grow(std::max<size_t>(16, 2 * slots_.size()));
  const size_t slot = slot_of(text);
  if (slots_[slot] >= 0) return {slots_[slot], false};
  slots_[slot] = static_cast<int32_t>(strings_.size());
  strings_.add(text);
  return {slots_[slot], true};
}

int32_t TokenTable::find(std::string_view text) const noexcept {
  return slots_.empty() ? -1 : slots_[slot_of(text)];
}

/// Where the text is, or would be put.
size_t TokenTable::slot_of(std::string_view text) const noexcept {
  size_t slot = std::hash<std::string_view>()(text) & (slots_.size() - 1);
  while (slots_[slot] >= 0 && strings_[static_cast<size_t>(slots_[slot])] != text) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return slot;
}

void TokenTable::grow(size_t slots) {
  slots_.assign(slots, -1);
  for (size_t i = 0; i < strings_.size(); ++i) {
    slots_[slot_of(strings_[i])] = static_cast<int32_t>(i);
  }
}

}  // namespace pith
