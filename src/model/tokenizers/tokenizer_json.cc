// tokenizer.json of the Hugging Face tokenizers library: its parts, and what is refused.

#include <fmt/format.h>

#include "core/json_file.h"
#include "model/tokenizers/tokenizer_kinds.h"
#include "model/tokenizers/tokenizer_text.h"

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

/// The file's added tokens, and those of the files beside it that it does not have.
std::vector<AddedToken> added_tokens(const json& root, const TokenizerConfig& config) {
  std::vector<AddedToken> added;
  StringMap<int32_t> known;
  for (const json& spec : member(root, "added_tokens")) {
    added.push_back(parse_added_token(spec));
    added.back().id = token_id(spec.at("id"), added.back().content);
    known.emplace(added.back().content, added.back().id);
  }
  for (const AddedToken& token : config.added) {
    if (known.emplace(token.content, token.id).second) added.push_back(token);
  }
  return added;
}

BpeParts read_parts(const json& root, const TokenizerConfig& config) {
  Normalizer normalizer(member(root, "normalizer"));
  PreTokenizer pre_tokenizer(member(root, "pre_tokenizer"));
  Bpe model(root.at("model"), pre_tokenizer.byte_level());
  check_decoder(member(root, "decoder"), pre_tokenizer.byte_level());
  return {std::move(normalizer), std::move(pre_tokenizer), std::move(model),
          added_tokens(root, config)};
}

class JsonTokenizer final : public BpeTokenizer {
 public:
  JsonTokenizer(const json& root, const TokenizerConfig& config)
      : BpeTokenizer(read_parts(root, config)) {
    const auto bos = template_bos(member(root, "post_processor"));
    const auto bos_id = bos ? find(*bos) : std::nullopt;
    if (bos && !bos_id) {
      throw Error(ErrorCode::kCorrupt,
                  fmt::format("the post_processor's token \"{}\" is no token", *bos));
    }
    settle(config, bos_id.value_or(-1), -1, bos_id.has_value());
  }
};

}  // namespace

std::unique_ptr<Tokenizer> load_json_tokenizer(const std::filesystem::path& file,
                                               const TokenizerConfig& config) {
  const json root = read_tokenizer_json(file);
  return with_file_name(file, [&] { return std::make_unique<JsonTokenizer>(root, config); });
}

}  // namespace pith
