#include "model/tokenizers/split_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "pith/error.h"

namespace pith {

// Regular expressions as tokenizer.json has them, for Oniguruma. Text that no branch takes is a
// word of its own.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigitPattern = R"(\p{N})";

namespace {

constexpr std::string_view kGpt2[] = {kGpt2Pattern};
constexpr std::string_view kSmollm[] = {kDigitPattern, kGpt2Pattern};
constexpr std::string_view kLlama3[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwen2[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kQwen35[] = {
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
    R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kTekken[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kGpt4o[] = {
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)"};
constexpr std::string_view kDefault[] = {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)",
                                         "[0-9][0-9][0-9]"};

constexpr std::string_view kGpt2Names[] = {
    "gpt-2", "phi-2", "mpt", "olmo", "jais", "exaone4", "trillion", "granite-docling", "gigachat"};
constexpr std::string_view kSmollmNames[] = {"smollm",    "starcoder", "refact",    "command-r",
                                             "codeshell", "exaone",    "minerva-7b"};
constexpr std::string_view kLlama3Names[] = {"llama-bpe", "llama3",  "llama-v3", "falcon3",
                                             "falcon-h1", "pixtral", "midm-2.0", "lfm2"};
constexpr std::string_view kDbrxNames[] = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"};
constexpr std::string_view kQwen2Names[] = {"qwen2", "deepseek-r1-qwen", "megrez"};
constexpr std::string_view kStableNames[] = {"stablelm2", "hunyuan", "solar-open", "grok-2"};
constexpr std::string_view kQwen35Names[] = {"qwen35"};
constexpr std::string_view kTekkenNames[] = {"tekken"};
constexpr std::string_view kGpt4oNames[] = {"gpt-4o", "llama4", "kanana2"};
constexpr std::string_view kDefaultNames[] = {"default"};

constexpr SplitRules kRules[] = {
    {.names = kGpt2Names, .patterns = kGpt2},
    {.names = kSmollmNames, .patterns = kSmollm},
    {.names = kLlama3Names, .patterns = kLlama3, .ignore_merges = true, .add_bos = true},
    {.names = kDbrxNames, .patterns = kLlama3},
    {.names = kQwen2Names, .patterns = kQwen2, .nfc = true},
    {.names = kStableNames, .patterns = kQwen2},
    {.names = kQwen35Names, .patterns = kQwen35, .nfc = true},
    {.names = kTekkenNames, .patterns = kTekken, .ignore_merges = true, .add_bos = true},
    {.names = kGpt4oNames, .patterns = kGpt4o},
    {.names = kDefaultNames, .patterns = kDefault},
};

}  // namespace

std::string split_rule_names() {
  std::vector<std::string_view> names;
  for (const SplitRules& rules : kRules) {
    names.insert(names.end(), rules.names.begin(), rules.names.end());
  }
  std::erase(names, "default");  // converters write it for what they do not know: it is refused
  return fmt::format("{}", fmt::join(names, ", "));
}

const SplitRules* find_split_rules(std::span<const std::string> patterns, bool ignore_merges,
                                   bool nfc) {
  for (const SplitRules& rules : kRules) {
    const bool same =
        std::equal(rules.patterns.begin(), rules.patterns.end(), patterns.begin(), patterns.end());
    if (same && rules.ignore_merges == ignore_merges && rules.nfc == nfc) return &rules;
  }
  return nullptr;
}

const SplitRules& split_rules(std::string_view pre) {
  for (const SplitRules& rules : kRules) {
    if (std::find(rules.names.begin(), rules.names.end(), pre) != rules.names.end()) return rules;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the pre-tokenizer \"{}\" is not supported; supported: {}", pre,
                          split_rule_names()));
}

}  // namespace pith
