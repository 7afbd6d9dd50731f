// Texts: tokenizers, chat templates, policies, presets, results, JSON schemas.

#include <nlohmann/json.hpp>

#include "chat/template.h"
#include "fuzz/fuzz.h"
#include "paths.h"
#include "pith/chat.h"
#include "pith/form.h"
#include "pith/presets.h"
#include "pith/tokenizer.h"
#include "tools/eval/results.h"

namespace pith::fuzz {
namespace {

void use_tokenizer(const Tokenizer& tokenizer) {
  for (const char* text : {"Größe 12 <s>\n x</s> the in", "\xff\xc3 a\tb"}) {
    const auto ids = tokenizer.encode(text);
    for (const int32_t id : ids)
      need(id >= 0 && id < tokenizer.vocab_size(), "ids are of the vocabulary");
    need(tokenizer.decode(ids).size() < size_t{1} << 24, "a short text stays short");
  }
  for (int32_t id = 0; id < std::min(tokenizer.vocab_size(), 64); ++id) {
    (void)tokenizer.piece(id);
    (void)tokenizer.is_special(id);
  }
}

std::vector<std::string> tokenizer_json_seeds() {
  return {R"({"added_tokens":[{"id":6,"content":"<s>","special":true}],
 "normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
 "decoder":{"type":"ByteLevel"},
 "model":{"type":"BPE","vocab":{"t":0,"h":1,"e":2,"th":3,"the":4,"\u0120":5},
  "merges":["t h","th e"]}})",
          R"({"added_tokens":[{"id":0,"content":"<unk>","special":true}],
 "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},
  {"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},
 "pre_tokenizer":null,
 "decoder":{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},
  "content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,
  "stop":0}]},
 "model":{"type":"BPE","byte_fallback":true,"unk_token":"<unk>","vocab":{"<unk>":0,"\u2581":1,
  "t":2,"h":3,"\u2581t":4,"<0x0A>":5},"merges":[["\u2581","t"]]}})",
          R"({"added_tokens":[],"normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence",
 "pretokenizers":[{"type":"Split","pattern":{"Regex":"\\p{L}+|\\p{N}{1,3}|\\s+"},
 "behavior":"Isolated","invert":false},{"type":"Digits","individual_digits":true},
 {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"decoder":{"type":"ByteLevel"},
 "model":{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"],"ignore_merges":true}})"};
}

bool read_tokenizer_json(std::string_view input) {
  const auto path = file("json/tokenizer.json", input).parent_path();
  return harmless([&] { use_tokenizer(*load_tokenizer(path)); });
}

/// Fields of protocol buffers.
std::string message(int field, const std::string& bytes) {
  return static_cast<char>(field << 3 | 2) + std::string(1, static_cast<char>(bytes.size())) +
         bytes;
}
std::string varint(int field, int value) {
  return static_cast<char>(field << 3) + std::string(1, static_cast<char>(value));
}

/// A tokenizer.model of pieces with falling scores; `kind` 1: unigram, 2: BPE.
std::string sentencepiece_model(int kind) {
  std::string all;
  float score = 0;
  const auto piece = [&](const std::string& text, int type) {
    std::string number(reinterpret_cast<const char*>(&score), sizeof(score));
    all += message(1, message(1, text) + std::string(1, 2 << 3 | 5) + number + varint(3, type));
    score -= 1;
  };
  piece("<unk>", 2), piece("<s>", 3), piece("</s>", 3), piece("\xe2\x96\x81", 1);
  for (const char* text : {"t", "h", "e", "th", "the", "\xe2\x96\x81t", "x", "1"}) piece(text, 1);
  piece("[INST]", 4);
  all += message(2, varint(3, kind));
  all += message(3, message(1, "identity") + varint(3, 1) + varint(4, 0));
  return all;
}

std::vector<std::string> sentencepiece_seeds() {
  return {sentencepiece_model(1), sentencepiece_model(2)};
}

bool read_sentencepiece(std::string_view input) {
  const auto path = file("sentencepiece/tokenizer.model", input).parent_path();
  return harmless([&] { use_tokenizer(*load_tokenizer(path)); });
}

constexpr const char* kVariables = R"({
  "messages": [{"role": "system", "content": "Be brief."},
               {"role": "user", "content": "a\n b"},
               {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f",
                "arguments": {"x": [1, 2.5, null, true]}}}]},
               {"role": "tool", "content": "Größe 漢字 <|im_end|>"}],
  "tools": [{"function": {"name": "f", "items": 3}}], "add_generation_prompt": true, "parts": [{"type": "text", "text": "x"}],
  "bos_token": "<s>", "n": 7})";

std::vector<std::string> template_seeds() {
  std::vector<std::string> seeds = {
      "{{ n ** 2 }}{{ 'ab' * n }}{{ ('a' * 99) in ('b' * 99) }}{{ range(3)|sum }}",
      "{% macro m(x) %}{{ caller(x) }}{% endmacro %}{% call(y) m(3) %}{{ y }}{% endcall %}",
      "{% for x in messages recursive %}{{ x.role }}{{ loop.index }}{% endfor %}",
      "{%- with a = namespace(b=1) %}{% set a.b = [1, 2] %}{{ a.b|map('string')|join }}{% endwith "
      "%}",
      "{{ '%s %d'|format('a', 3) }}{{ '{} {x}'.format(1, x=2) }}{{ 'ff'|int(base=16) }}"};
  for (const char* name : {"llama31", "qwen3", "qwen25"})
    seeds.push_back(read_all(repo_dir() / "tests/data/chat" / (std::string(name) + ".jinja")));
  return seeds;
}

bool render_template(std::string_view input) {
  static const auto variables = [] {
    std::map<std::string, chat::Value, std::less<>> out;
    const auto read = chat::read_json(kVariables);
    for (const auto& [name, value] : read.value().dict()->items) out[name.text()->bytes()] = value;
    return out;
  }();
  return harmless([&] {
    const chat::Template all(input, "fuzz");
    (void)all.render(variables, [] { return std::tm{}; });
  });
}

ModelConfig some_config() {
  ModelConfig c;
  c.layers = 4, c.query_heads = 4, c.kv_heads = 2, c.head_dim = 64;
  c.hidden = 256, c.intermediate = 512, c.vocab = 1000, c.context = 4096;
  c.sliding_window = {0, 128, 0, 0};
  return c;
}

std::vector<std::string> policy_seeds() {
  std::vector<std::string> seeds = {"streaming_llm(window=508);layers=0-1,-1:exact",
                                    "exact+k:int8+v:int4(hadamard=true),sink=4,window=64,dtype=f32",
                                    "snapkv(budget=25%)+kivi(bits=2);layers=0/heads=1:exact+int4",
                                    "h2o(budget=16MiB),prompt=exact",
                                    "exact+ladder(new=int8,rows=16)",
                                    "express(heavy=0,s=32)+gear(bits=4),sink=4"};
  for (const MethodInfo& method : methods()) {
    std::string text;
    for (const ParameterInfo& p : method.parameters)
      if (!p.default_value.empty())
        text += (text.empty() ? "(" : ",") + p.name + "=" + p.default_value;
    text = (method.is_selector ? "" : "exact+") + method.name + text + (text.empty() ? "" : ")");
    // Some need a parameter that has no default.
    if (harmless([&] { (void)Policy::parse(text); })) seeds.push_back(text);
  }
  return seeds;
}

bool read_policy(std::string_view input) {
  return harmless([&] {
    StandaloneOptions options;
    options.policy = Policy::parse(input);
    const std::string text = options.policy.to_string();
    need(Policy::parse(text).to_string() == text, "a policy prints what it is: " + text);
    harmless([&] {
      const size_t small = estimate_ledger(some_config(), options, 100).total_bytes();
      const size_t large = estimate_ledger(some_config(), options, 4000).total_bytes();
      need(small <= large, "more tokens take no less: " + text);
    });
    harmless([&] { options.policy.set_budget("25%"); });
  });
}

std::vector<std::string> preset_seeds() {
  const std::string all = read_all(repo_dir() / "presets/any.jsonl");
  size_t end = 0;
  for (int line = 0; line < 6; ++line) end = all.find('\n', end) + 1;
  return {all.substr(0, end),
          R"({"policy":"exact","model":"m","context":512,"seeds":2,"kl":[0,0],"bits":16,"facts":1}
{"policy":"exact+int4","model":"m","context":512,"seeds":2,"kl":[0.1,0.01],"bits":5,"facts":0.5}
)"};
}

bool read_presets(std::string_view input) {
  return harmless([&] {
    const Presets presets = Presets::parse(input, "fuzz");
    for (const char* budget : {"25%", "1MiB"})
      harmless([&] {
        const PresetChoice choice = presets.choose(some_config(), {}, budget);
        need(choice.bytes <= choice.budget_bytes, "a choice fits its budget");
        need(!choice.why().empty(), "a choice says why");
      });
  });
}

std::vector<std::string> result_seeds() {
  return {R"({"result": "ppl", "name": "continue", "length": 2048, "setting": {"version": "0.1.0",)"
          R"( "model": "demo", "bos": 0, "exact": "exact"}, "null_control_kl": 0.0}
{"policy": "keydiff", "seeds": 1, "count": 768, "tokens": 2047,)"
          R"( "bytes": 5599168.0, "bits": 10.6848, "kept": 0.658036, "seconds": 21.0487,)"
          R"( "perplexity": [19.8584, 1.96495], "ln_ratio": [0.0659259, 1e-320],)"
          R"( "kl": [0.0770841, 0.0180921], "kl_50": 0.0, "kl_99": 1, "same_top": [0.9, 0.1]}
)",
          R"({"result": "task", "name": "facts", "length": 512, "setting": {"model": "demo"}}
{"policy": "exact", "seeds": 1, "count": 20, "tokens": 511, "bytes": 100.0, "bits": 16, "kept": 1,)"
          R"( "seconds": 0.5, "score": [1.0, 0.0], "by_turn": [1, 1]}
)"};
}

bool read_result_lines(std::string_view input) {
  return harmless([&] {
    const Results results = read_results({file("results.jsonl", input)});
    const std::string lines = results_to_lines(results);
    if (lines.empty()) return;
    const Results again = read_results({file("again.jsonl", lines)});
    need(results_to_lines(again) == lines, "results read back are the same");
  });
}

std::vector<std::string> schema_seeds() {
  return {R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"list":{"type":
"array","items":{"anyOf":[{"type":"number"},{"type":"null"}]},"minItems":1,"maxItems":3}},
"required":["name"],"additionalProperties":{"type":"boolean"}})",
          R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"of":{"type":
"array","items":{"$ref":"#/$defs/tree"}}},"required":["of"]}}})",
          R"({"enum":["red","green",3,{"x":[1,2]},"\u00e9"]})",
          R"({"type":["integer","null","string"],"minLength":2})"};
}

/// Whatever is drawn may go on or end, and is JSON where it ends.
bool read_schema(std::string_view input) {
  return harmless([&] {
    static const auto demo = load_tokenizer(repo_dir() / "models/demo");
    static const auto words = std::make_shared<const FormVocabulary>(*demo);
    const auto form = AnswerForm::json_schema(input, words);
    FormFollower follower(form, {0});
    std::string text;
    for (uint32_t step = 0; step < 60 && !follower.complete(); ++step) {
      const auto mask = follower.mask();
      need(!mask.empty(), "a form that is not complete has a mask");
      // The first token at or after a place that moves about.
      const size_t bits = mask.size() * 32;
      size_t id = step * 2654435761u % bits, tried = 0;
      while (tried < bits && (mask[id / 32] >> (id % 32) & 1) == 0) id = (id + 1) % bits, ++tried;
      need(tried < bits, "some token may come: " + text);
      if (id == 0) break;
      text += demo->piece(static_cast<int32_t>(id));
      follower.push(static_cast<int32_t>(id));
    }
    if (follower.complete())
      need(nlohmann::json::accept(text), "a complete answer is JSON: " + text);
  });
}

}  // namespace

std::span<const Target> text_targets() {
  static const Target all[] = {
      {"tokenizer_json", tokenizer_json_seeds, read_tokenizer_json},
      {"sentencepiece", sentencepiece_seeds, read_sentencepiece},
      {"template", template_seeds, render_template},
      {"policy", policy_seeds, read_policy},
      {"presets", preset_seeds, read_presets},
      {"results", result_seeds, read_result_lines},
      {"schema", schema_seeds, read_schema},
  };
  return all;
}

}  // namespace pith::fuzz
