// The tokenizer of a GGUF file: its keys tokenizer.ggml.*. "gpt2" is byte-level BPE whose split
// rules have a name, "llama" is SentencePiece's BPE by scores.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "core/gguf.h"
#include "core/utf8.h"
#include "model/tokenizers/score_bpe.h"
#include "model/tokenizers/tokenizer_kinds.h"
#include "model/tokenizers/tokenizer_text.h"

namespace pith {
namespace {

constexpr size_t kMostTokens = size_t{1} << 22;
constexpr size_t kLongestToken = size_t{1} << 20;
constexpr std::string_view kSpace = "\xE2\x96\x81";  // U+2581

// Special tokens that end an answer, besides those that the file's keys name.
constexpr std::string_view kEnds[] = {"<|eot_id|>",    "<|im_end|>",           "<|end|>",
                                      "<end_of_turn>", "<|endoftext|>",        "<|end_of_text|>",
                                      "</s>",          "<|eom_id|>",           "<EOT>",
                                      "_<EOT>",        "<｜end▁of▁sentence｜>"};

enum Type : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

std::string key(const char* name) { return fmt::format("tokenizer.ggml.{}", name); }

/// The values of the keys. Whatever is wrong with one of them is found here.
struct Keys {
  Keys(const Gguf& gguf, bool by_scores, bool adds_bos) : file(gguf) {
    tokens = need(gguf.texts(key("tokens")), "tokens");
    if (tokens.empty() || tokens.size() > kMostTokens) {
      gguf.corrupt(key("tokens"),
                   fmt::format("holds {} tokens; expected 1 to {}", tokens.size(), kMostTokens));
    }
    for (const std::string_view token : tokens) {
      if (token.size() <= kLongestToken) continue;
      gguf.corrupt(key("tokens"), fmt::format("holds a token of {} bytes; {} at most", token.size(),
                                              kLongestToken));
    }
    for (const std::string_view token : tokens) bytes += token.size();
    if (by_scores) {
      scores = need(gguf.numbers(key("scores")), "scores");
      same_length("scores", scores.size());
    } else {
      merges = need(gguf.texts(key("merges")), "merges");
    }
    bos = id("bos_token_id", by_scores ? 1 : -1);
    unknown = id("unknown_token_id", by_scores ? 0 : -1);
    ends = {id("eos_token_id", by_scores ? 2 : -1), id("eot_token_id", -1), id("eom_token_id", -1)};
    read_types(by_scores);
    find_repeated();
    for (size_t i = 0; i < tokens.size(); ++i) {
      const bool end = std::find(std::begin(kEnds), std::end(kEnds), tokens[i]) != std::end(kEnds);
      if (types[i] == kControl && end) ends.push_back(static_cast<int32_t>(i));
    }
    add_bos = gguf.flag(key("add_bos_token")).value_or(adds_bos);
    add_space = gguf.flag(key("add_space_prefix")).value_or(by_scores);
  }

  /// Some files have no types, and some call SentencePiece's tokens of a byte normal ones.
  void read_types(bool by_scores) {
    const auto found = file.integers(key("token_type"), kNormal, kByte);
    types = found.value_or(std::vector<int64_t>(tokens.size(), kNormal));
    same_length("token_type", types.size());
    if (!by_scores) return;
    for (size_t i = 0; i < tokens.size(); ++i)
      if (types[i] == kNormal && tokens[i].starts_with("<0x") &&
          sentencepiece_bytes(tokens[i], true) != tokens[i])
        types[i] = kByte;
    if (found) return;
    if (unknown >= 0) types[static_cast<size_t>(unknown)] = kUnknown;
    for (const int32_t id : {bos, ends[0], ends[1], ends[2]})
      if (id >= 0) types[static_cast<size_t>(id)] = kControl;
  }

  /// Of tokens with the same text the last counts in a text; the others are decoded alone.
  void find_repeated() {
    TokenTable texts;
    texts.reserve(tokens.size(), bytes);
    std::vector<size_t> last;
    repeated.assign(tokens.size(), false);
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto [entry, is_new] = texts.add(tokens[i]);
      if (is_new) {
        last.push_back(i);
      } else {
        repeated[std::exchange(last[static_cast<size_t>(entry)], i)] = true;
      }
    }
  }

  template <class T>
  T need(std::optional<T> value, const char* name) const {
    if (!value) file.corrupt(key(name), "is missing; this tokenizer needs it");
    return *std::move(value);
  }

  void same_length(const char* name, size_t length) const {
    if (length == tokens.size()) return;
    file.corrupt(key(name), fmt::format("holds {} entries for {} tokens", length, tokens.size()));
  }

  /// A fallback that is no token is none.
  int32_t id(const char* name, int32_t fallback) const {
    const auto last = static_cast<int64_t>(tokens.size()) - 1;
    return static_cast<int32_t>(
        file.integer(key(name), 0, last).value_or(fallback <= last ? fallback : -1));
  }

  /// Tokens that are looked for in the text itself.
  std::vector<AddedToken> added() const {
    std::vector<AddedToken> out;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (repeated[i] || (types[i] != kUserDefined && !special(i))) continue;
      out.push_back({.id = static_cast<int32_t>(i),
                     .content = std::string(tokens[i]),
                     .special = special(i)});
    }
    return out;
  }
  /// As chat templates call them.
  std::map<std::string, std::string> names() const {
    std::map<std::string, std::string> out;
    for (const auto& [stem, name] : {std::pair("padding", "pad_token"),
                                     {"unknown", "unk_token"},
                                     {"separator", "sep_token"},
                                     {"seperator", "sep_token"},
                                     {"cls", "cls_token"},
                                     {"mask", "mask_token"}}) {
      const int32_t found = id(fmt::format("{}_token_id", stem).c_str(), -1);
      if (found >= 0) out[name] = tokens[static_cast<size_t>(found)];
    }
    return out;
  }
  bool special(size_t i) const { return types[i] == kControl || types[i] == kUnknown; }

  const Gguf& file;
  std::vector<std::string_view> tokens, merges;
  size_t bytes = 0;  // of all tokens
  std::vector<int64_t> types;
  std::vector<bool> repeated;  // a later token has the same text
  std::vector<float> scores;
  int32_t bos = -1, unknown = -1;
  std::vector<int32_t> ends;  // -1: none
  bool add_bos = false, add_space = false;
};

const SplitRules& rules_of(const Gguf& gguf) {
  const auto pre = gguf.text(key("pre"));
  if (!pre || *pre == "default") {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("{}: the file does not say how its tokenizer splits text (key {} is "
                    "{}), so that ids would be a guess; supported: {}. Convert the model "
                    "again, or take a file of after May 2024",
                    gguf.source(), key("pre"), gguf.describe(key("pre")), split_rule_names()));
  }
  return *with_file_name(gguf.source(), [&] { return &split_rules(*pre); });
}

BpeParts read_bpe(const Keys& keys, const SplitRules& rules) {
  TokenTable vocab;
  std::vector<int32_t> ids;
  vocab.reserve(keys.tokens.size(), keys.bytes);
  ids.reserve(keys.tokens.size());
  for (size_t i = 0; i < keys.tokens.size(); ++i) {
    if (keys.repeated[i] || (keys.types[i] != kNormal && keys.types[i] != kByte)) continue;
    vocab.add(keys.tokens[i]);
    ids.push_back(static_cast<int32_t>(i));
  }
  return {rules.nfc ? Normalizer(nlohmann::json{{"type", "NFC"}}) : Normalizer(),
          PreTokenizer(rules),
          Bpe(std::move(vocab), std::move(ids), keys.merges, rules.ignore_merges), keys.added()};
}

class GgufBpeTokenizer final : public BpeTokenizer {
 public:
  GgufBpeTokenizer(const Keys& keys, const SplitRules& rules)
      : BpeTokenizer(read_bpe(keys, rules)) {
    make_room(static_cast<int32_t>(keys.tokens.size()) - 1);
    for (size_t i = 0; i < keys.tokens.size(); ++i) {
      if (!keys.repeated[i]) continue;
      const bool in_letters = keys.types[i] == kNormal || keys.types[i] == kByte;
      put(static_cast<int32_t>(i), keys.tokens[i],
          in_letters ? bytes_of_letters(keys.tokens[i]) : std::string(keys.tokens[i]),
          keys.special(i));
    }
    settle(keys.bos, keys.ends, keys.add_bos);
    special_names_ = keys.names();
  }
};

class GgufScoreTokenizer final : public VocabTokenizer {
 public:
  explicit GgufScoreTokenizer(const Keys& keys) : spaced_(keys.add_space) {
    strips_first_space_ = spaced_;
    make_room(static_cast<int32_t>(keys.tokens.size()) - 1);
    pieces_.reserve(keys.tokens.size(), keys.bytes);
    for (size_t i = 0; i < keys.tokens.size(); ++i) add(keys, i);
    std::vector<AddedToken> added = keys.added(), special, others;
    for (AddedToken& token : added) {
      if (!token.special) token.content = marked(token.content);
      (token.special ? special : others).push_back(std::move(token));
    }
    in_text_ = AddedTokenFinder(std::move(special));
    in_marked_ = AddedTokenFinder(std::move(others));
    pieces_.set_unknown(keys.unknown);
    settle(keys.bos, keys.ends, keys.add_bos);
    special_names_ = keys.names();
  }

  std::vector<int32_t> encode_within(std::string_view text,
                                     std::span<const TextSpan> trusted) const override {
    check_text(text, trusted);
    const std::string repaired = is_utf8(text) ? std::string() : to_utf8(text);
    const std::string_view clean = repaired.empty() ? text : std::string_view(repaired);
    std::vector<int32_t> out;
    for (const Section& section : in_text_.split(clean, trusted)) {
      if (section.token >= 0) {
        out.push_back(section.token);
      } else {
        encode_marked(marked(clean.substr(section.begin, section.end - section.begin)), out);
      }
    }
    return out;
  }

  std::optional<int32_t> find(std::string_view token) const override { return pieces_.find(token); }

 private:
  void add(const Keys& keys, size_t i) {
    const std::string_view text = keys.tokens[i];
    const auto id = static_cast<int32_t>(i);
    const int64_t type = keys.types[i];
    const bool verbatim = keys.special(i) || type == kUserDefined;
    const auto kind = verbatim || type == kByte ? ScoreBpe::Kind::kApart
                      : type == kUnused         ? ScoreBpe::Kind::kUnused
                                                : ScoreBpe::Kind::kMerged;
    if (!keys.repeated[i]) pieces_.add(text, id, keys.scores[i], kind);
    const std::string bytes =
        verbatim ? std::string(text) : sentencepiece_bytes(text, type == kByte);
    if (type == kByte && bytes.size() != 1) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("the byte token {} is \"{}\"; expected <0x00> to <0xFF>", i, text));
    }
    if (type == kByte) pieces_.set_byte(static_cast<uint8_t>(bytes[0]), id);
    put(id, text, bytes, keys.special(i));
  }

  /// Every stretch of text gets its space: the first, and each behind a token.
  void encode_marked(std::string_view text, std::vector<int32_t>& out) const {
    for (const Section& part : in_marked_.split(text, {})) {
      if (part.token >= 0) {
        out.push_back(part.token);
        continue;
      }
      const auto rest = text.substr(part.begin, part.end - part.begin);
      if (spaced_) {
        pieces_.encode(std::string(kSpace).append(rest), out);
      } else {
        pieces_.encode(rest, out);
      }
    }
  }

  /// With U+2581 for spaces. The file has real spaces in tokens that are runs of them, but a text
  /// may hold either.
  static std::string marked(std::string_view text) {
    std::string out;
    for (const char c : text) {
      if (c == ' ') {
        out += kSpace;
      } else {
        out.push_back(c);
      }
    }
    return out;
  }

  ScoreBpe pieces_;
  AddedTokenFinder in_text_, in_marked_;
  bool spaced_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_gguf_tokenizer(const Gguf& file) {
  const auto model = file.text(key("model"));
  if (model != "gpt2" && model != "llama") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: the tokenizer {} (key {}) is not supported; supported: gpt2 "
                            "(byte-level BPE), llama (SentencePiece by scores)",
                            file.source(), file.describe(key("model")), key("model")));
  }
  const bool by_scores = model == "llama";
  const SplitRules* rules = by_scores ? nullptr : &rules_of(file);
  const Keys keys(file, by_scores, by_scores || rules->add_bos);
  return with_file_name(file.source(), [&]() -> std::unique_ptr<Tokenizer> {
    if (by_scores) return std::make_unique<GgufScoreTokenizer>(keys);
    return std::make_unique<GgufBpeTokenizer>(keys, *rules);
  });
}

}  // namespace pith
