// tokenizer.json: added tokens, then normalizer, added tokens again (those that are looked for in
// normalized text), pre-tokenizer, BPE. As the Hugging Face tokenizers library does it.

#include <fmt/format.h>

#include <algorithm>

#include "model/tokenizer_bpe.h"
#include "model/tokenizer_kinds.h"
#include "model/tokenizer_split.h"
#include "model/tokenizer_utf8.h"

namespace pith {
namespace {

using nlohmann::json;

const json& member(const json& root, const char* name) {
  static const json kNull;
  const auto found = root.find(name);
  return found == root.end() ? kNull : *found;
}

[[noreturn]] void refuse(const char* what, const std::string& type, const char* known) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the {} \"{}\" is not supported; supported: {}", what, type, known));
}

/// The members of a Sequence, or the spec itself.
std::vector<json> flatten(const json& spec, const char* list) {
  if (spec.is_null()) return {};
  if (spec.at("type").get<std::string>() != "Sequence") return {spec};
  return spec.at(list).get<std::vector<json>>();
}

/// Decoding is ours (see Tokenizer::decode): the file's must be the usual one for its kind.
void check_decoder(const json& spec, bool byte_level) {
  for (const json& step : flatten(spec, "decoders")) {
    const std::string type = step.at("type").get<std::string>();
    const bool known = byte_level ? type == "ByteLevel"
                                  : type == "Replace" || type == "ByteFallback" || type == "Fuse" ||
                                        type == "Strip" || type == "Metaspace";
    if (known) continue;
    refuse("decoder", type,
           byte_level ? "null, ByteLevel"
                      : "null, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence");
  }
}

/// The token that a TemplateProcessing puts before a text, or nothing.
std::optional<std::string> template_bos(const json& spec) {
  std::optional<std::string> bos;
  for (const json& step : flatten(spec, "processors")) {
    const std::string type = step.at("type").get<std::string>();
    if (type == "ByteLevel") continue;  // only trims the offsets that encode() does not give
    if (type != "TemplateProcessing") {
      refuse("post_processor", type, "null, ByteLevel, TemplateProcessing, Sequence");
    }
    const json& single = step.at("single");
    const bool has_bos = single.size() == 2 && single[0].contains("SpecialToken");
    if (!(has_bos || single.size() == 1) || !single.back().contains("Sequence")) {
      refuse("post_processor", "TemplateProcessing with this template",
             "the text alone, or one special token before it");
    }
    if (has_bos) bos = single[0].at("SpecialToken").at("id").get<std::string>();
  }
  return bos;
}

class JsonTokenizer final : public VocabTokenizer {
 public:
  JsonTokenizer(const json& root, const TokenizerConfig& config)
      : normalizer_(member(root, "normalizer")),
        pre_tokenizer_(member(root, "pre_tokenizer")),
        model_(root.at("model"), pre_tokenizer_.byte_level()) {
    check_decoder(member(root, "decoder"), pre_tokenizer_.byte_level());
    strips_first_space_ = normalizer_.prepends() || pre_tokenizer_.prepends();
    add_tokens(root, config);
    const auto bos = template_bos(member(root, "post_processor"));
    const auto bos_id = bos ? find(*bos) : std::nullopt;
    if (bos && !bos_id) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("the post_processor's token \"{}\" is no token", *bos));
    }
    settle(config, bos_id.value_or(-1), -1, bos_id.has_value());
  }

  std::vector<int32_t> encode(std::string_view text, bool parse_special) const override {
    check_length(text);
    const std::string repaired = is_utf8(text) ? std::string() : to_utf8(text);
    const std::string_view clean = repaired.empty() ? text : std::string_view(repaired);
    std::vector<int32_t> out;
    Bpe::Encoder encoder(model_);
    Words words;
    for (const Section& section : in_text_.split(clean, parse_special)) {
      if (section.token >= 0) {
        out.push_back(section.token);
        continue;
      }
      const std::string normal =
          normalizer_.apply(std::string(clean.substr(section.begin, section.end - section.begin)));
      for (const Section& part : in_normalized_.split(normal, parse_special)) {
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

  std::optional<int32_t> find(std::string_view token) const override {
    const auto added = added_ids_.find(token);
    return added != added_ids_.end() ? std::optional(added->second) : model_.find(token);
  }

 private:
  static void encode_words(const Words& words, Bpe::Encoder& encoder, std::vector<int32_t>& out) {
    size_t begin = 0;
    for (const size_t end : words.ends) {
      encoder.encode(std::string_view(words.bytes).substr(begin, end - begin), out);
      begin = end;
    }
  }

  /// Fills the table of pieces and the finders of added tokens.
  void add_tokens(const json& root, const TokenizerConfig& config) {
    std::vector<AddedToken> added;
    for (const json& spec : member(root, "added_tokens")) {
      added.push_back(parse_added_token(spec));
      added.back().id = spec.at("id").get<int32_t>();
      note_added(added.back());
    }
    for (const AddedToken& token : config.added) {
      if (added_ids_.contains(token.content)) continue;
      added.push_back(token);
      note_added(token);
    }
    int32_t highest = -1;
    for (const auto& [token, id] : model_.vocab()) highest = std::max(highest, id);
    for (const AddedToken& token : added) highest = std::max(highest, token.id);
    make_room(highest);
    for (const auto& [token, id] : model_.vocab()) put(id, token, model_.bytes_of(token), false);
    std::vector<AddedToken> raw, normalized;
    for (AddedToken& token : added) {
      if (!model_.find(token.content)) put(token.id, token.content, "", false);
      entries_[token.id].bytes = token.content;  // as in the text, not in the model's letters
      entries_[token.id].special = token.special;
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

  void note_added(const AddedToken& token) {
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

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  Bpe model_;
  StringMap<int32_t> added_ids_;
  AddedTokenFinder in_text_, in_normalized_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_json_tokenizer(const std::filesystem::path& file,
                                               const TokenizerConfig& config) {
  const json root = read_tokenizer_json(file);
  return with_file_name(file, [&] { return std::make_unique<JsonTokenizer>(root, config); });
}

}  // namespace pith
