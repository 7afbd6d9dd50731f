#include "model/tokenizers/tokenizer_bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "core/json_file.h"
#include "core/utf8.h"
#include "pith/error.h"

namespace pith {
namespace {

using nlohmann::json;

constexpr size_t kMaxCachedWord = 64;  // bytes; longer words rarely come back
constexpr size_t kMaxCachedWords = size_t{1} << 16;

[[noreturn]] void corrupt(const std::string& what) { throw Error(ErrorCode::kCorrupt, what); }

/// Code of the letter of each byte.
constexpr std::array<char32_t, 256> make_letters() {
  std::array<char32_t, 256> letters{};
  char32_t extra = 256;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool visible = (b >= 33 && b <= 126) || (b >= 161 && b != 173);
    letters[b] = visible ? char32_t{b} : extra++;
  }
  return letters;
}
constexpr std::array<char32_t, 256> kLetters = make_letters();

/// Byte of each letter, or -1.
constexpr std::array<int16_t, 512> make_bytes() {
  std::array<int16_t, 512> bytes{};
  bytes.fill(-1);
  for (int16_t b = 0; b < 256; ++b) bytes[kLetters[b]] = b;
  return bytes;
}
constexpr std::array<int16_t, 512> kBytes = make_bytes();

}  // namespace

std::string byte_to_letter(uint8_t byte) {
  std::string out;
  append_utf8(out, kLetters[byte]);
  return out;
}

std::optional<std::string> letters_to_bytes(std::string_view letters) {
  std::string out;
  for (size_t i = 0; i < letters.size(); ++i) {
    uint32_t code = static_cast<uint8_t>(letters[i]);
    if (code >= 0x80) {  // every letter has one byte, or two that start with 0xC2..0xC7
      if (code < 0xC2 || code > 0xC7 || i + 1 == letters.size()) return std::nullopt;
      code = (code & 0x1F) << 6 | (static_cast<uint8_t>(letters[++i]) & 0x3F);
    }
    if (kBytes[code] < 0) return std::nullopt;
    out.push_back(static_cast<char>(kBytes[code]));
  }
  return out;
}

Bpe::Bpe(const json& model, bool byte_level) : byte_level_(byte_level) {
  read_options(model);
  read_vocab(model);
  read_merges(model.at("merges"));
  read_bytes();
}

Bpe::Bpe(TokenTable vocab, std::vector<int32_t> ids, std::span<const std::string_view> merges,
         bool ignore_merges)
    : byte_level_(true),
      ignore_merges_(ignore_merges),
      vocab_(std::move(vocab)),
      ids_(std::move(ids)) {
  reserve_merges(merges.size());
  for (const std::string_view merge : merges) {
    const size_t space = merge.find(' ', 1);
    if (space == merge.npos)
      corrupt(fmt::format("merge {} \"{}\" is no pair", merges_.size(), merge));
    add_merge(merge.substr(0, space), merge.substr(space + 1));
  }
  read_bytes();
}

void Bpe::read_options(const json& model) {
  // Files of before 2020 have no type; they are BPE if they have merges.
  const std::string type = model.value("type", std::string(model.contains("merges") ? "BPE" : ""));
  const auto refuse = [](const std::string& what) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("the tokenizer model {} is not supported; supported: BPE without "
                            "dropout, continuing_subword_prefix and end_of_word_suffix",
                            what));
  };
  if (type != "BPE") refuse(fmt::format("\"{}\"", type));
  const auto text = [&](const char* name) {
    const auto found = model.find(name);
    return found == model.end() || found->is_null() ? std::string() : found->get<std::string>();
  };
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text(name).empty()) refuse(fmt::format("BPE with {} \"{}\"", name, text(name)));
  }
  const auto dropout = model.find("dropout");
  if (dropout != model.end() && !dropout->is_null() && dropout->get<double>() != 0) {
    refuse("BPE with dropout");
  }
  const auto flag = [&](const char* name) {
    const auto found = model.find(name);
    return found != model.end() && !found->is_null() && found->get<bool>();
  };
  ignore_merges_ = flag("ignore_merges");
  byte_fallback_ = flag("byte_fallback");
  fuse_unknown_ = flag("fuse_unk");
}

void Bpe::read_vocab(const json& model) {
  const json& vocab = model.at("vocab");
  if (!vocab.is_object()) corrupt("\"vocab\" is not an object");
  vocab_.reserve(vocab.size(), 0);
  ids_.reserve(vocab.size());
  for (const auto& [token, id] : vocab.items()) {
    vocab_.add(token);  // keys of an object differ
    ids_.push_back(token_id(id, token));
  }
  const auto unknown = model.find("unk_token");
  if (unknown == model.end() || unknown->is_null()) return;
  const auto found = find(unknown->get<std::string>());
  if (!found) corrupt(fmt::format("unk_token {} is not in the vocabulary", unknown->dump()));
  unknown_ = *found;
}

void Bpe::read_merges(const json& merges) {
  if (!merges.is_array()) corrupt("\"merges\" is not an array");
  reserve_merges(merges.size());
  for (const json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
      continue;
    }
    if (!merge.is_string()) corrupt(fmt::format("merge {} is no pair", merges_.size()));
    const std::string_view text = merge.get_ref<const std::string&>();
    if (text.starts_with("#version")) continue;
    const size_t space = text.find(' ');
    if (space == text.npos || text.find(' ', space + 1) != text.npos) {
      corrupt(fmt::format("merge {} \"{}\" is no pair", merges_.size(), text));
    }
    add_merge(text.substr(0, space), text.substr(space + 1));
  }
}

void Bpe::reserve_merges(size_t count) {
  merges_.reserve(count);
  slots_.assign(std::bit_ceil(2 * count + 1), -1);
}

void Bpe::add_merge(std::string_view left, std::string_view right) {
  const auto a = find(left), b = find(right), both = find(std::string(left).append(right));
  const auto rank = static_cast<int32_t>(merges_.size());
  if (!a || !b || !both) {
    const std::string missing(!a ? left : !b ? right : std::string(left).append(right));
    corrupt(
        fmt::format("merge {} (\"{}\", \"{}\") needs the token \"{}\", which the vocabulary "
                    "lacks",
                    rank, left, right, missing));
  }
  merges_.push_back({*a, *b, *both});
  slots_[slot_of(*a, *b)] = rank;  // of two equal merges the later counts, as in the library
}

/// Where the merge is, or would be put.
size_t Bpe::slot_of(int32_t left, int32_t right) const noexcept {
  const uint64_t pair = static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  size_t slot = static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> 20) & (slots_.size() - 1);
  for (; slots_[slot] >= 0; slot = (slot + 1) & (slots_.size() - 1)) {
    const Merge& merge = merges_[static_cast<size_t>(slots_[slot])];
    if (merge.left == left && merge.right == right) break;
  }
  return slot;
}

void Bpe::read_bytes() {
  if (!byte_level_ && !byte_fallback_) {
    if (unknown_ >= 0) return;
    throw Error(ErrorCode::kUnsupported,
                "a BPE vocabulary of characters with neither byte_fallback nor unk_token loses "
                "text; supported: byte-level, byte_fallback, or unk_token");
  }
  for (int b = 0; b < 256; ++b) {
    const std::string token =
        byte_level_ ? byte_to_letter(static_cast<uint8_t>(b)) : fmt::format("<0x{:02X}>", b);
    byte_ids_[b] = find(token).value_or(-1);
  }
}

std::optional<int32_t> Bpe::find(std::string_view token) const {
  const int32_t found = vocab_.find(token);
  return found < 0 ? std::nullopt : std::optional(ids_[static_cast<size_t>(found)]);
}

std::string Bpe::bytes_of(std::string_view token) const {
  if (byte_level_) return letters_to_bytes(token).value_or(std::string(token));
  return sentencepiece_bytes(token, byte_fallback_);
}

void Bpe::Encoder::encode(std::string_view word, std::vector<int32_t>& out) {
  if (word.empty()) return;
  if (word.size() > kMaxCachedWord) return encode_uncached(word, out);
  auto found = cache_.find(word);
  if (found == cache_.end()) {
    if (cache_.size() >= kMaxCachedWords) return encode_uncached(word, out);
    const size_t begin = cached_ids_.size();
    encode_uncached(word, cached_ids_);
    found = cache_.emplace(word, Cached{begin, cached_ids_.size()}).first;
  }
  out.insert(out.end(), cached_ids_.begin() + static_cast<ptrdiff_t>(found->second.begin),
             cached_ids_.begin() + static_cast<ptrdiff_t>(found->second.end));
}

void Bpe::Encoder::encode_uncached(std::string_view word, std::vector<int32_t>& out) {
  if (model_.ignore_merges_) {
    std::string spelled;
    if (model_.byte_level_) {
      for (const char byte : word) append_utf8(spelled, kLetters[static_cast<uint8_t>(byte)]);
    } else {
      spelled = word;
    }
    if (const auto whole = model_.find(spelled)) {
      out.push_back(*whole);
      return;
    }
  }
  start(word);
  merge_all();
  for (const Symbol& symbol : symbols_) {
    if (symbol.id >= 0) out.push_back(symbol.id);
  }
}

void Bpe::Encoder::add_symbol(int32_t id) {
  const auto at = static_cast<int32_t>(symbols_.size());
  if (at > 0) symbols_.back().next = at;
  symbols_.push_back({id, at - 1, -1});
}

void Bpe::Encoder::add_known(int32_t id) {
  if (std::exchange(unknown_waits_, false)) add_symbol(model_.unknown_);
  add_symbol(id);
}

void Bpe::Encoder::add_unknown() {
  if (model_.unknown_ < 0) return;  // what has no token is left out, as the library does
  if (unknown_waits_ && !model_.fuse_unknown_) add_symbol(model_.unknown_);
  unknown_waits_ = true;
}

void Bpe::Encoder::start(std::string_view word) {
  symbols_.clear();
  unknown_waits_ = false;
  if (model_.byte_level_) {
    for (const char byte : word) {
      const int32_t id = model_.byte_ids_[static_cast<uint8_t>(byte)];
      id >= 0 ? add_known(id) : add_unknown();
    }
  } else {
    start_characters(word);
  }
  if (unknown_waits_) add_symbol(model_.unknown_);
}

void Bpe::Encoder::start_characters(std::string_view word) {
  while (!word.empty()) {
    const std::string_view character = word.substr(0, utf8_step(word).length);
    word.remove_prefix(character.size());
    if (const auto found = model_.find(character)) {
      add_known(*found);
    } else if (!fall_back(character)) {
      add_unknown();
    }
  }
}

/// The character as tokens of its bytes, if each has one. An unknown that waits goes on waiting,
/// behind them: so the library orders the two.
bool Bpe::Encoder::fall_back(std::string_view character) {
  const auto id = [&](char byte) { return model_.byte_ids_[static_cast<uint8_t>(byte)]; };
  const bool whole = model_.byte_fallback_ && std::all_of(character.begin(), character.end(),
                                                          [&](char b) { return id(b) >= 0; });
  if (!whole) return false;
  for (const char byte : character) add_symbol(id(byte));
  return true;
}

void Bpe::Encoder::add_candidate(int32_t left) {
  if (left < 0 || symbols_[left].next < 0) return;
  const int32_t rank = model_.merge_of(symbols_[left].id, symbols_[symbols_[left].next].id);
  if (rank >= 0) heap_.push_back({rank, left, model_.merges_[static_cast<size_t>(rank)].id});
}

void Bpe::Encoder::merge_all() {
  const auto later = [](const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  heap_.clear();
  for (int32_t i = 0; i < static_cast<int32_t>(symbols_.size()); ++i) add_candidate(i);
  std::make_heap(heap_.begin(), heap_.end(), later);
  while (!heap_.empty()) {
    const Candidate top = heap_.front();
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
    Symbol& left = symbols_[top.at];
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbols_[left.next];
    // Either side may have merged with another neighbour since the candidate was made.
    const int32_t rank = model_.merge_of(left.id, right.id);
    if (rank < 0 || model_.merges_[static_cast<size_t>(rank)].id != top.id) continue;
    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols_[left.next].previous = top.at;
    for (const int32_t at : {left.previous, top.at}) {
      const size_t before = heap_.size();
      add_candidate(at);
      if (heap_.size() > before) std::push_heap(heap_.begin(), heap_.end(), later);
    }
  }
}

}  // namespace pith
