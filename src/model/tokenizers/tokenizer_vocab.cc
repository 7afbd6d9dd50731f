#include "model/tokenizers/tokenizer_vocab.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/json_file.h"

#include "core/utf8.h"

namespace pith {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

// Sixteen times the largest vocabulary in use: a damaged id must not ask for gigabytes.
constexpr size_t kMaxVocabulary = size_t{1} << 22;

bool flag(const json& spec, const char* name, bool fallback) {
  const auto found = spec.find(name);
  return found == spec.end() || found->is_null() ? fallback : found->get<bool>();
}

/// A token's name: a string, an object with "content", or null for "none".
std::optional<std::string> token_name(const json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end()) return std::nullopt;
  if (found->is_null()) return "";
  return found->is_object() ? found->at("content").get<std::string>() : found->get<std::string>();
}

/// Appends the ids under `key`: one number or a list.
void append_ids(const json& config, const char* key, std::vector<int32_t>& out) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return;
  const json list = found->is_array() ? *found : json::array({*found});
  for (const json& id : list)
    if (id != -1) out.push_back(token_id(id, key));  // -1 says that there is none
}

int32_t parse_id(const std::string& text) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0) {
    throw Error(ErrorCode::kCorrupt, fmt::format("\"{}\" is no token id", text));
  }
  return id;
}

/// Reads folder/name, if it is there, and hands it to `use`.
template <typename Use>
void read_if_there(const fs::path& folder, const char* name, const Use& use) {
  const fs::path file = folder / name;
  if (!is_there(file)) return;
  const json root = read_tokenizer_json(file);
  with_file_name(file, [&] {
    if (!root.is_object()) throw Error(ErrorCode::kCorrupt, "is not a JSON object");
    use(root);
  });
}

/// "pad_token" and its kin; the first file that names one counts.
void read_names(const json& root, TokenizerConfig& out) {
  for (const auto& [key, value] : root.items()) {
    if (!key.ends_with("_token") || key == "bos_token" || key == "eos_token") continue;
    const bool named = value.is_string() || (value.is_object() && value.contains("content"));
    if (named) out.names.emplace(key, value.is_string() ? value : value["content"]);
  }
  const auto more = root.find("extra_special_tokens");
  if (more != root.end() && more->is_object()) read_names(*more, out);
}

void read_main_config(const json& root, TokenizerConfig& out) {
  out.bos = token_name(root, "bos_token");
  out.eos = token_name(root, "eos_token");
  read_names(root, out);
  const auto add_bos = root.find("add_bos_token");
  if (add_bos != root.end() && !add_bos->is_null()) out.add_bos = add_bos->get<bool>();
  const auto kind = root.find("tokenizer_class");
  if (kind != root.end() && !kind->is_null()) {
    out.llama_class = kind->get<std::string>().starts_with("LlamaTokenizer");
  }
  out.legacy = flag(root, "legacy", true);
  const auto added = root.find("added_tokens_decoder");
  if (added == root.end() || added->is_null()) return;
  for (const auto& [id, spec] : added->items()) {
    out.added.push_back(parse_added_token(spec));
    out.added.back().id = parse_id(id);
  }
}

}  // namespace

void throw_named(const fs::path& file, ErrorCode code, const char* what) {
  throw Error(code, fmt::format("{}: {}", file.string(), what));
}

std::string read_tokenizer_file(const fs::path& file) {
  std::string bytes = read_file(file, kMostTableBytes);
  refuse_stand_in(bytes, file.string());
  return bytes;
}

json read_tokenizer_json(const fs::path& file) {
  return parse_json(read_tokenizer_file(file), file.string());
}

AddedToken parse_added_token(const json& spec) {
  AddedToken token;
  token.content = spec.at("content").get<std::string>();
  token.special = flag(spec, "special", false);
  token.lstrip = flag(spec, "lstrip", false);
  token.rstrip = flag(spec, "rstrip", false);
  token.normalized = flag(spec, "normalized", !token.special);
  token.single_word = flag(spec, "single_word", false);
  return token;
}

TokenizerConfig read_tokenizer_config(const fs::path& folder) {
  TokenizerConfig out;
  read_if_there(folder, "tokenizer_config.json", [&](const json& r) { read_main_config(r, out); });
  read_if_there(folder, "special_tokens_map.json", [&](const json& root) {
    if (!out.bos) out.bos = token_name(root, "bos_token");
    if (!out.eos) out.eos = token_name(root, "eos_token");
    read_names(root, out);
  });
  read_if_there(folder, "added_tokens.json", [&](const json& root) {
    for (const auto& [content, id] : root.items()) {
      const bool known =
          std::any_of(out.added.begin(), out.added.end(),
                      [&name = content](const AddedToken& t) { return t.content == name; });
      if (known) continue;
      AddedToken token;
      token.content = content;
      token.id = token_id(id, content);
      out.added.push_back(token);
    }
  });
  for (const char* name : {"generation_config.json", "config.json"}) {
    read_if_there(folder, name, [&](const json& root) {
      append_ids(root, "bos_token_id", out.bos_ids);
      append_ids(root, "eos_token_id", out.eos_ids);
    });
  }
  return out;
}

const VocabTokenizer::Entry& VocabTokenizer::entry(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("token id {} is outside the tokenizer's vocabulary; ids go from 0 to "
                            "{}",
                            id, vocab_size() - 1));
  }
  return entries_[id];
}

void VocabTokenizer::make_room(int32_t highest) {
  const size_t ids =
      std::min(static_cast<size_t>(std::max(highest, -1) + int64_t{1}), kMaxVocabulary);
  if (ids > entries_.size()) entries_.resize(ids);
}

void VocabTokenizer::put(int32_t id, std::string_view spelled, std::string_view bytes,
                         bool special) {
  if (id < 0 || id >= vocab_size()) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("\"{}\" has the id {}; ids go from 0 to {} at most", spelled, id,
                            kMaxVocabulary - 1));
  }
  if (entries_[id].present) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("\"{}\" has the id {}, which another token has too", spelled, id));
  }
  set(entries_[id], bytes, special);
}

void VocabTokenizer::replace(int32_t id, std::string_view bytes, bool special) {
  entry(id);
  set(entries_[id], bytes, special);
}

/// The former text of an entry stays in pieces_, unused: there are few such.
void VocabTokenizer::set(Entry& entry, std::string_view bytes, bool special) {
  entry = {-1, special, true};
  if (bytes.empty()) return;
  entry.piece = static_cast<int32_t>(pieces_.size());
  pieces_.add(bytes);
  longest_ = std::max(longest_, bytes.size());
}

void VocabTokenizer::settle(const TokenizerConfig& config, int32_t bos, int32_t eos, bool add_bos) {
  const auto named = [&](const char* key, const std::string& name) {
    if (const auto id = find(name)) return *id;
    throw Error(ErrorCode::kCorrupt,
                fmt::format("the {} \"{}\" that the files beside it name is no token", key, name));
  };
  if (config.bos) {
    bos = config.bos->empty() ? -1 : named("bos_token", *config.bos);
  } else if (bos < 0 && !config.bos_ids.empty() && config.bos_ids[0] < vocab_size()) {
    bos = config.bos_ids[0];
  }
  special_names_ = config.names;
  std::vector<int32_t> ends;
  if (config.eos && !config.eos->empty()) ends.push_back(named("eos_token", *config.eos));
  ends.push_back(eos);
  for (const int32_t id : config.eos_ids) ends.push_back(id);
  settle(bos, ends, config.add_bos.value_or(add_bos || config.llama_class));
}

void VocabTokenizer::settle(int32_t bos, const std::vector<int32_t>& ends, bool add_bos) {
  bos_ = bos;
  for (const int32_t id : ends) {
    // Test models and padded ones name ids that their tokenizer does not have.
    const bool known = id >= 0 && id < vocab_size();
    if (known && std::find(eos_.begin(), eos_.end(), id) == eos_.end()) eos_.push_back(id);
  }
  add_bos_ = add_bos;
  if (add_bos_ && bos_ < 0) {
    throw Error(ErrorCode::kCorrupt,
                "the tokenizer adds a beginning-of-sequence token but has none; name it as "
                "\"bos_token\" in tokenizer_config.json (in GGUF: tokenizer.ggml.bos_token_id), or "
                "set \"add_bos_token\" to false there");
  }
}

void VocabTokenizer::check_text(std::string_view text, std::span<const TextSpan> trusted) {
  const bool partly = !trusted.empty() && !lies_within(0, SIZE_MAX, trusted);
  if (partly && !is_utf8(text)) {
    throw Error(ErrorCode::kInvalidArgument,
                "a text of which only a part may hold special tokens must be valid UTF-8");
  }
  if (text.size() <= kMaxTextBytes) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("a text of {} bytes is too long to tokenize at once; the limit is {}: "
                          "encode it in parts",
                          text.size(), kMaxTextBytes));
}

void require_may_fit(const Tokenizer& tokenizer, size_t bytes, size_t context) {
  const size_t longest = tokenizer.longest_piece();
  if (bytes / longest + (bytes % longest != 0 ? 1 : 0) <= context) return;
  throw Error(ErrorCode::kContextFull,
              fmt::format("a text of {} bytes is more than the context of {} tokens can hold, of "
                          "which the longest has {} bytes; raise it (-c) or shorten the text",
                          bytes, context, longest));
}

std::string VocabTokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string out;
  for (const int32_t id : ids) {
    const Entry& token = entry(id);
    if (!skip_special || !token.special) out += bytes_of(token);
  }
  if (strips_first_space_ && out.starts_with(' ')) out.erase(0, 1);
  return out;
}

std::vector<int32_t> encode_within(const Tokenizer& tokenizer, std::string_view text,
                                   std::span<const TextSpan> trusted) {
  const auto* own = dynamic_cast<const VocabTokenizer*>(&tokenizer);
  if (own == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "this tokenizer cannot tell whom to trust with special tokens; supported: those of "
                "load_tokenizer()");
  }
  return own->encode_within(text, trusted);
}

}  // namespace pith
