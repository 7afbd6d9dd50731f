// generate() over a model that spells a text byte by byte: a character that lies across tokens
// reaches the callback whole or not at all.

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/safetensors.h"
#include "model/test_files.h"
#include "model/tokenizers/tokenizer_bpe.h"
#include "pith/generate.h"

namespace pith {
namespace {

using nlohmann::json;

constexpr size_t kVocab = 256, kHidden = 256;

/// A model of no layers' worth: attention and MLP are zero, so that the logits are a function of
/// the last token alone, and token t, the byte t, is followed by the byte after it in `spelled`.
class SpellingModel {
 public:
  explicit SpellingModel(const std::string& spelled) {
    const auto numbers = [&](const std::string& name, const std::vector<size_t>& shape,
                             float value = 0) -> std::vector<float>& {
      size_t count = 1;
      for (size_t n : shape) count *= n;
      shapes_[name] = shape;
      return entries_[name] = std::vector<float>(count, value);
    };
    auto& embedding = numbers("model.embed_tokens.weight", {kVocab, kHidden});
    for (size_t t = 0; t < kVocab; ++t) embedding[t * kHidden + t] = 1;
    auto& head = numbers("lm_head.weight", {kVocab, kHidden});
    for (size_t i = 0; i + 1 < spelled.size(); ++i)
      head[byte(spelled, i + 1) * kHidden + byte(spelled, i)] = 1;
    numbers("model.norm.weight", {kHidden}, 1);
    const std::string layer = "model.layers.0.";
    numbers(layer + "input_layernorm.weight", {kHidden}, 1);
    numbers(layer + "post_attention_layernorm.weight", {kHidden}, 1);
    numbers(layer + "self_attn.q_proj.weight", {32, kHidden});
    numbers(layer + "self_attn.k_proj.weight", {16, kHidden});
    numbers(layer + "self_attn.v_proj.weight", {16, kHidden});
    numbers(layer + "self_attn.o_proj.weight", {kHidden, 32});
    numbers(layer + "mlp.gate_proj.weight", {48, kHidden});
    numbers(layer + "mlp.up_proj.weight", {48, kHidden});
    numbers(layer + "mlp.down_proj.weight", {kHidden, 48});
    write();
  }
  std::shared_ptr<const Model> load() const { return Model::load(folder_.path()); }

 private:
  static size_t byte(const std::string& text, size_t i) { return static_cast<uint8_t>(text[i]); }

  void write() const {
    const json config{{"architectures", {"LlamaForCausalLM"}},
                      {"hidden_size", kHidden},
                      {"intermediate_size", 48},
                      {"num_hidden_layers", 1},
                      {"num_attention_heads", 2},
                      {"num_key_value_heads", 1},
                      {"head_dim", 16},
                      {"vocab_size", kVocab},
                      {"max_position_embeddings", 64},
                      {"tie_word_embeddings", false}};
    json vocab;
    for (size_t b = 0; b < kVocab; ++b) vocab[byte_to_letter(static_cast<uint8_t>(b))] = b;
    const json tokenizer{
        {"added_tokens", json::array()},
        {"pre_tokenizer",
         {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
        {"decoder", {{"type", "ByteLevel"}}},
        {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}}};
    testing_files::write_file(folder_.path() / "config.json", config.dump());
    testing_files::write_file(folder_.path() / "tokenizer.json", tokenizer.dump());
    std::vector<TensorBytes> tensors;
    for (const auto& [name, entry] : entries_)
      tensors.push_back({{name, TensorType::kF32, shapes_.at(name)}, entry.data()});
    write_safetensors(folder_.path() / "model.safetensors", tensors);
  }

  testing_files::TemporaryFolder folder_;
  std::map<std::string, std::vector<float>> entries_;
  std::map<std::string, std::vector<size_t>> shapes_;
};

using Pieces = std::vector<std::string>;

/// The text that is shown when `spelled` is generated from its first byte on, a token per byte.
Pieces shown(const std::string& spelled, size_t tokens, const std::vector<std::string>& stop = {}) {
  const SpellingModel model(spelled);
  Session session(model.load(), {});
  GenerateOptions options;
  options.sampling.temperature = 0;
  options.max_tokens = static_cast<int64_t>(tokens);
  options.stop = stop;
  Pieces pieces;
  const std::vector<int32_t> prompt{static_cast<uint8_t>(spelled[0])};
  const auto result = generate(session, prompt, options,
                               [&](std::string_view piece) { pieces.emplace_back(piece); });
  std::string together;
  for (const std::string& piece : pieces) together += piece;
  EXPECT_EQ(result.text, together);
  return pieces;
}

// Characters of two, three and four bytes; no byte twice, so that each has one follower.
const std::string kText = "aéb€😀!";

TEST(Utf8OfGenerate, CharactersAcrossTokensComeWhole) {
  EXPECT_EQ(shown(kText, kText.size() - 1), (Pieces{"é", "b", "€", "😀", "!"}));
}

TEST(Utf8OfGenerate, ACharacterThatIsNotFinishedIsReplacedAtTheEnd) {
  for (size_t bytes = 1; bytes < 4; ++bytes)
    EXPECT_EQ(shown(kText, 6 + bytes), (Pieces{"é", "b", "€", "\uFFFD"})) << bytes << " of 😀";
}

TEST(Utf8OfGenerate, BytesThatAreNoCharacterAreReplacedAsTheyAppear) {
  EXPECT_EQ(shown("a\xC3"
                  "b\x82"
                  "c",
                  4),
            (Pieces{"\uFFFD"
                    "b",
                    "\uFFFD", "c"}));
}

TEST(Utf8OfGenerate, AStopStringOfHalfACharacterLeavesTheOtherCharactersWhole) {
  EXPECT_EQ(shown(kText, 11, {"€"}), (Pieces{"é", "b"}));
}

}  // namespace
}  // namespace pith
