// A folder's tokenizer as keys of a GGUF file. Byte-level BPE becomes "gpt2" under the name of its
// split rules; BPE of characters becomes "llama": the pieces of a tokenizer.model with their
// scores, those of a tokenizer.json with minus the rank of their merge.

#include <fmt/format.h>

#include <algorithm>

#include "core/input_file.h"
#include "core/json_file.h"
#include "model/tokenizers/split_rules.h"
#include "model/tokenizers/tokenizer_kinds.h"
#include "model/tokenizers/tokenizer_split.h"
#include "pith/error.h"
#include "tools/quantize/gguf_draft.h"

namespace pith {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

enum Type : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

[[noreturn]] void refuse(const fs::path& folder, const std::string& what) {
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("{}: its tokenizer cannot be written to a GGUF file: {}", folder.string(), what));
}

/// The regular expressions that a pre-tokenizer splits by, one after the other; nothing for one
/// that does more.
std::optional<std::vector<std::string>> patterns_of(const json& spec) {
  std::vector<std::string> out;
  const json steps =
      spec.value("type", "") == "Sequence" ? spec.at("pretokenizers") : json::array({spec});
  for (const json& step : steps) {
    const std::string type = step.value("type", "");
    if (type == "ByteLevel") {
      if (step.value("add_prefix_space", true)) return std::nullopt;
      if (step.value("use_regex", true)) out.emplace_back(kGpt2Pattern);
    } else if (type == "Digits" && step.value("individual_digits", false)) {
      out.emplace_back(kDigitPattern);
    } else if (type == "Split" && step.value("behavior", "") == "Isolated" &&
               !step.value("invert", false) && step.at("pattern").contains("Regex")) {
      out.push_back(step.at("pattern").at("Regex").get<std::string>());
    } else {
      return std::nullopt;
    }
  }
  return out;
}

struct Vocabulary {
  std::vector<std::string> tokens;
  std::vector<int32_t> types;
  std::vector<std::string> merges;
  std::vector<float> scores;

  void set(int32_t id, const std::string& token, int32_t type, const fs::path& folder) {
    if (id < 0 || static_cast<size_t>(id) >= tokens.size())
      refuse(folder, fmt::format("the token \"{}\" has the id {}, and the model has {} rows", token,
                                 id, tokens.size()));
    tokens[static_cast<size_t>(id)] = token;
    types[static_cast<size_t>(id)] = type;
  }
};

bool is_byte(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token.ends_with('>');
}

/// Of a model with so many rows, which nothing has a name for yet.
Vocabulary unnamed(int vocab) {
  Vocabulary out;
  for (int i = 0; i < vocab; ++i) out.tokens.push_back(fmt::format("[PAD{}]", i));
  out.types.assign(out.tokens.size(), kUnused);
  return out;
}

Vocabulary read_vocabulary(const json& root, const fs::path& folder, int vocab, bool byte_level) {
  const json& model = root.at("model");
  Vocabulary out = unnamed(vocab);
  for (const auto& [token, id] : model.at("vocab").items())
    out.set(token_id(id, token), token, !byte_level && is_byte(token) ? kByte : kNormal, folder);
  for (const json& spec : root.value("added_tokens", json::array())) {
    const bool special = spec.value("special", false);
    const auto content = spec.at("content").get<std::string>();
    out.set(token_id(spec.at("id"), content), content, special ? kControl : kUserDefined, folder);
  }
  std::unordered_map<std::string, int64_t> ranks;
  for (const json& merge : model.at("merges")) {
    std::string text = merge.is_array() ? fmt::format("{} {}", merge.at(0).get<std::string>(),
                                                      merge.at(1).get<std::string>())
                                        : merge.get<std::string>();
    if (text.starts_with("#version")) continue;
    const size_t space = text.find(' ', 1);
    if (space == text.npos) refuse(folder, fmt::format("the merge \"{}\" is no pair", text));
    ranks.emplace(text.substr(0, space) + text.substr(space + 1), ranks.size());
    out.merges.push_back(std::move(text));
  }
  if (byte_level) return out;
  // Characters begin as they are; a longer piece that nothing merges to must not be merged to.
  const auto unreached = static_cast<float>(out.merges.size() + 1);
  for (const std::string& token : out.tokens) {
    const auto rank = ranks.find(token);
    out.scores.push_back(rank == ranks.end() ? -unreached : -static_cast<float>(rank->second));
  }
  return out;
}

/// Texts that tell tokenizers apart: digits, contractions, white space, several scripts.
constexpr std::string_view kProbes[] = {"Hello world",
                                        " 12345 it's\n\n  x",
                                        "Größe 漢字 🚀 naïve",
                                        "WE'LL don't 3.14159\t\tif (a == b) {",
                                        "Здравствуй мир, 2024年10月",
                                        "  two  spaces\r\nand a line ",
                                        "camelCase snake_case e\u0301 ﬁ"};

void check_same(const fs::path& folder, const Tokenizer& own, const GgufKeys& keys) {
  const std::string head = gguf_head(keys, {});
  const auto written =
      load_gguf_tokenizer(Gguf::parse(std::as_bytes(std::span(head)), folder.string()));
  for (const std::string_view text : kProbes) {
    if (own.encode(text) == written->encode(text)) continue;
    refuse(folder, fmt::format("read back, it would give other ids for \"{}\"", text));
  }
  // Readers take 1 for a "llama" tokenizer's bos where the file names none.
  const bool same_bos = own.bos() < 0 || own.bos() == written->bos();
  if (!same_bos || own.add_bos() != written->add_bos())
    refuse(folder, "read back, a text would begin otherwise");
}

void add_by_scores(const Vocabulary& v, bool add_space, GgufKeys& keys) {
  keys.text("tokenizer.ggml.model", "llama");
  keys.text("tokenizer.ggml.pre", "default");
  keys.f32s("tokenizer.ggml.scores", v.scores);
  keys.flag("tokenizer.ggml.add_space_prefix", add_space);
}

Vocabulary add_json_keys(const fs::path& folder, int vocab, GgufKeys& keys) {
  const json root = read_tokenizer_json(folder / "tokenizer.json");
  const json pre = root.value("pre_tokenizer", json());
  const json normalizer = root.value("normalizer", json());
  const bool byte_level = !pre.is_null() && PreTokenizer(pre).byte_level();
  Vocabulary v = read_vocabulary(root, folder, vocab, byte_level);
  if (!byte_level) {
    add_by_scores(v, Normalizer(normalizer).prepends() || PreTokenizer(pre).prepends(), keys);
    return v;
  }
  const auto patterns = patterns_of(pre);
  const bool ignore_merges = root.at("model").value("ignore_merges", false);
  const SplitRules* rules =
      patterns ? find_split_rules(*patterns, ignore_merges, !normalizer.is_null()) : nullptr;
  if (!rules) refuse(folder, "no name stands for how it splits text into words");
  keys.text("tokenizer.ggml.model", "gpt2");
  keys.text("tokenizer.ggml.pre", rules->names.front());
  keys.texts("tokenizer.ggml.merges", v.merges);
  return v;
}

int32_t type_of(const SentencePieces::Piece& piece) {
  if (piece.control) return kControl;
  if (piece.unknown) return kUnknown;
  if (piece.byte) return kByte;
  return piece.unused ? kUnused : kNormal;
}

Vocabulary add_sentencepiece_keys(const fs::path& folder, int vocab, GgufKeys& keys) {
  const SentencePieces model = read_sentence_pieces(folder / "tokenizer.model");
  if (!model.bpe)
    refuse(folder,
           "its tokenizer.model is no BPE, and a GGUF file's pieces are merged as BPE merges them");
  const TokenizerConfig config = read_tokenizer_config(folder);
  if (model.add_dummy_prefix && !config.legacy)
    refuse(folder,
           "only the first text gets a space in front (legacy = false), and readers of GGUF files "
           "put one after each special token");
  Vocabulary v = unnamed(vocab);
  v.scores.assign(v.tokens.size(), 0);
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const SentencePieces::Piece& piece = model.pieces[id];
    v.set(static_cast<int64_t>(id), piece.text, type_of(piece), folder);
    v.scores[id] = piece.score;
  }
  for (const AddedToken& token : config.added)
    v.set(token.id, token.content, token.special ? kControl : kUserDefined, folder);
  add_by_scores(v, model.add_dummy_prefix, keys);
  return v;
}

}  // namespace

void add_tokenizer_keys(const fs::path& folder, int vocab, GgufKeys& keys) {
  const fs::path file = folder / "tokenizer.json";
  const auto own = load_tokenizer(folder);
  const Vocabulary v =
      is_there(file) ? with_file_name(file, [&] { return add_json_keys(folder, vocab, keys); })
                     : add_sentencepiece_keys(folder, vocab, keys);
  keys.texts("tokenizer.ggml.tokens", v.tokens);
  keys.i32s("tokenizer.ggml.token_type", v.types);
  if (own->bos() >= 0) keys.u32("tokenizer.ggml.bos_token_id", static_cast<uint32_t>(own->bos()));
  const char* ends[] = {"eos", "eot", "eom"};
  for (size_t i = 0; i < std::min(std::size(ends), own->eos_ids().size()); ++i) {
    keys.u32(fmt::format("tokenizer.ggml.{}_token_id", ends[i]),
             static_cast<uint32_t>(own->eos_ids()[i]));
  }
  keys.flag("tokenizer.ggml.add_bos_token", own->add_bos());
  check_same(folder, *own, keys);
}

}  // namespace pith
