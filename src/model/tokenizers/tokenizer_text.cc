#include "model/tokenizers/tokenizer_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/utf8.h"

namespace pith {

BpeTokenizer::BpeTokenizer(BpeParts parts)
    : normalizer_(std::move(parts.normalizer)),
      pre_tokenizer_(std::move(parts.pre_tokenizer)),
      model_(std::move(parts.model)) {
  strips_first_space_ = normalizer_.prepends() || pre_tokenizer_.prepends();
  add_tokens(std::move(parts.added));
}

std::vector<int32_t> BpeTokenizer::encode_within(std::string_view text,
                                                 std::span<const TextSpan> trusted) const {
  check_text(text, trusted);
  const std::string repaired = is_utf8(text) ? std::string() : to_utf8(text);
  const std::string_view clean = repaired.empty() ? text : std::string_view(repaired);
  std::vector<int32_t> out;
  Bpe::Encoder encoder(model_);
  Words words;
  for (const Section& section : in_text_.split(clean, trusted)) {
    if (section.token >= 0) {
      out.push_back(section.token);
      continue;
    }
    const std::string normal =
        normalizer_.apply(std::string(clean.substr(section.begin, section.end - section.begin)));
    const TextSpan all{0, normal.size()};
    const bool may = lies_within(section.begin, section.end, trusted);
    for (const Section& part : in_normalized_.split(normal, {&all, may ? 1u : 0u})) {
      if (part.token >= 0) {
        out.push_back(part.token);
        continue;
      }
      const bool first = section.begin == 0 && part.begin == 0;
      const auto rest = std::string_view(normal).substr(part.begin, part.end - part.begin);
      pre_tokenizer_.split(rest, first, words);
      encode_words(words, encoder, out);
    }
  }
  return out;
}

std::optional<int32_t> BpeTokenizer::find(std::string_view token) const {
  const auto added = added_ids_.find(token);
  return added != added_ids_.end() ? std::optional(added->second) : model_.find(token);
}

void BpeTokenizer::encode_words(const Words& words, Bpe::Encoder& encoder,
                                std::vector<int32_t>& out) {
  size_t begin = 0;
  for (const size_t end : words.ends) {
    encoder.encode(std::string_view(words.bytes).substr(begin, end - begin), out);
    begin = end;
  }
}

/// Fills the table of pieces and the finders of added tokens.
void BpeTokenizer::add_tokens(std::vector<AddedToken> added) {
  for (const AddedToken& token : added) note_added(token);
  int32_t highest = -1;
  for (const int32_t id : model_.ids()) highest = std::max(highest, id);
  for (const AddedToken& token : added) highest = std::max(highest, token.id);
  make_room(highest);
  for (size_t i = 0; i < model_.ids().size(); ++i) {
    const std::string_view token = model_.vocab()[i];
    put(model_.ids()[i], token, model_.bytes_of(token), false);
  }
  std::vector<AddedToken> raw, normalized;
  for (AddedToken& token : added) {
    if (!model_.find(token.content)) put(token.id, token.content, "", false);
    replace(token.id, token.content, token.special);  // as in the text, not in the model's letters
    if (token.normalized) {
      token.content = normalizer_.apply(token.content);
      normalized.push_back(token);
    } else {
      raw.push_back(token);
    }
  }
  in_text_ = AddedTokenFinder(std::move(raw));
  in_normalized_ = AddedTokenFinder(std::move(normalized));
}

void BpeTokenizer::note_added(const AddedToken& token) {
  const auto known = model_.find(token.content);
  if (known && *known != token.id) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the added token \"{}\" has the id {}, but {} in the vocabulary",
                            token.content, token.id, *known));
  }
  if (!added_ids_.emplace(token.content, token.id).second) {
    throw Error(ErrorCode::kCorrupt, fmt::format("\"{}\" is added twice", token.content));
  }
}

}  // namespace pith
