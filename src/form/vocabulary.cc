#include "form/vocabulary.h"

#include <algorithm>

namespace pith::form {
namespace {

constexpr size_t kLongest = 1024;  // bytes of a token; longer ones are never drawn

/// Characters of a text that may be part of any JSON string as it is, or -1.
int64_t plain_characters(const std::string& text) {
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || c == '"' || c == '\\') return -1;
  }
  Utf8Stream stream;
  if (stream.push(text) != text) return -1;  // a part of a character
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

Trie trie_of(const std::vector<std::string>& texts, const std::vector<int32_t>& sorted) {
  Trie trie;
  trie.ids = sorted;
  std::vector<uint32_t> open;  // the nodes of the last text
  std::string last;
  const auto close = [&](size_t depth) {
    for (; open.size() > depth; open.pop_back())
      trie.nodes[open.back()].end = static_cast<uint32_t>(trie.nodes.size());
  };
  for (size_t i = 0; i < sorted.size(); ++i) {
    const std::string& text = texts[static_cast<size_t>(sorted[i])];
    const auto differs = std::mismatch(text.begin(), text.end(), last.begin(), last.end());
    close(static_cast<size_t>(differs.first - text.begin()));
    while (open.size() < text.size()) {
      const auto byte = static_cast<uint8_t>(text[open.size()]);
      open.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back({byte, static_cast<uint16_t>(open.size()), 0, 0, 0});
    }
    Trie::Node& node = trie.nodes[open.back()];
    if (node.tokens++ == 0) node.first_token = static_cast<uint32_t>(i);
    trie.depth = std::max(trie.depth, text.size());
    last = text;
  }
  close(0);
  return trie;
}

}  // namespace

Vocabulary::Vocabulary(const Tokenizer& tokenizer) {
  const auto size = static_cast<size_t>(tokenizer.vocab_size());
  texts.resize(size);
  plain.resize((size + 31) / 32);
  std::vector<int32_t> ids, rest;
  for (size_t i = 0; i < size; ++i) {
    const auto id = static_cast<int32_t>(i);
    if (tokenizer.is_special(id)) continue;
    texts[i] = tokenizer.piece(id);
    if (texts[i].size() > kLongest) texts[i].clear();
    if (texts[i].empty()) continue;
    ids.push_back(id);
    const int64_t characters = plain_characters(texts[i]);
    if (characters < 0) {
      rest.push_back(id);
      continue;
    }
    plain[i / 32] |= 1u << (i % 32);
    longest_plain = std::max(longest_plain, static_cast<size_t>(characters));
  }
  const auto before = [&](int32_t a, int32_t b) {
    return texts[static_cast<size_t>(a)] < texts[static_cast<size_t>(b)];
  };
  std::stable_sort(ids.begin(), ids.end(), before);
  std::stable_sort(rest.begin(), rest.end(), before);
  all = trie_of(texts, ids);
  others = trie_of(texts, rest);
}

}  // namespace pith::form
