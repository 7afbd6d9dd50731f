// Masks against a parser and hand-written documents; tokens are cut as the tokenizer never would.

#include "pith/form.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <random>

#include "paths.h"
#include "pith/error.h"
#include "pith/generate.h"
#include "pith/model.h"
#include "pith/tokenizer.h"

namespace pith {
namespace {

using Json = nlohmann::json;

const Tokenizer& tokenizer() {
  static const auto loaded = load_tokenizer(repo_dir() / "models/demo");
  return *loaded;
}

std::shared_ptr<const FormVocabulary> vocabulary() {
  static const auto words = std::make_shared<const FormVocabulary>(tokenizer());
  return words;
}

bool allowed(std::span<const uint32_t> mask, int32_t id) {
  const auto i = static_cast<size_t>(id);
  return mask.empty() || (i / 32 < mask.size() && (mask[i / 32] >> (i % 32) & 1) != 0);
}

/// Whether a form takes a text, token by token as the tokenizer cuts it, as a whole.
bool takes(const std::shared_ptr<const AnswerForm>& form, const std::string& text) {
  FormFollower follower(form, {0});
  for (const int32_t id : tokenizer().encode(text, false)) {
    if (!allowed(follower.mask(), id)) return false;
    follower.push(id);
  }
  return follower.may_end();
}

std::shared_ptr<const AnswerForm> schema(const std::string& text) {
  return AnswerForm::json_schema(text, vocabulary());
}

TEST(Form, Documents) {
  struct Case {
    const char* schema;
    std::vector<const char*> good, bad;
  };
  const Case cases[] = {
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},
          "required":["a"],"additionalProperties":false})",
       {R"({"a":1})", R"({"a": -20, "b": "x y"})"},
       {R"({"b":"x"})", "{}", R"({"a":1.5})", R"({"a":01})", R"({"a":1,})", R"({"a":1} )",
        R"({"a":1,"c":2})", R"({"a":)", R"({"a":1,"b":2})", R"([1])"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {R"("ab")", R"("abc")", R"("a\n")", R"("a\u00e9")"},
       {R"("a")", R"("abcd")", R"("ab)", R"("a\x")", R"("a\ud800")"}},
      {R"({"type":["number","null"]})",
       {"0", "-1.5e-3", "null", "12", "1E+5"},
       {"", "-", "1.", ".5", "1e", "nul", "+1", "true"}},
      {R"({"enum":["red","green",3,{"x":[1,2]}]})",
       {R"("red")", "3", R"({"x":[1,2]})"},
       {R"("re")", R"("blue")", "33"}},
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":2})",
       {"[true]", "[true, false]", "[true,false]"},
       {"[]", "[true,true,true]", "[true,]", "[1]"}},
      {R"({"anyOf":[{"type":"string"},{"type":"object","properties":{"s":{"const":"x"}},
          "required":["s"],"additionalProperties":false}]})",
       {R"("s")", R"({"s":"x"})"},
       {R"({"s":"y"})", "1"}},
      {R"({"type":"object","properties":{"a":{"type":"null"}},
          "additionalProperties":{"type":"integer"}})",
       {"{}", R"({"a":null,"b":1})", R"({"ab":1})"},
       {R"({"b":1,"a":2})", R"({"b":null})"}},
      {R"({"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"of":{"type":
          "array","items":{"$ref":"#/$defs/tree"}}},"required":["of"]}}})",
       {R"({"of":[]})", R"({"of":[{"of":[]},{"of":[{"of":[]}]}]})"},
       {R"({"of":[1]})", "{}"}},
      {"{}", {"1", R"({"a":[1,{"b":null}]})", R"("é€😀")"}, {R"({a:1})", "[1", R"({"a\"":1})"}},
  };
  for (const Case& c : cases) {
    const auto form = schema(c.schema);
    for (const char* text : c.good) EXPECT_TRUE(takes(form, text)) << c.schema << "\n" << text;
    for (const char* text : c.bad) EXPECT_FALSE(takes(form, text)) << c.schema << "\n" << text;
  }
  EXPECT_TRUE(takes(AnswerForm::json_object(vocabulary()), R"({"a":[]})"));
  EXPECT_FALSE(takes(AnswerForm::json_object(vocabulary()), "[]"));
}

TEST(Form, RefusesByName) {
  const auto words_of = [](const std::string& text, ErrorCode code) -> std::string {
    try {
      schema(text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    return "it was taken";
  };
  EXPECT_NE(words_of(R"({"type":"object","properties":{"a":{"type":"string","pattern":"x"}}})",
                     ErrorCode::kUnsupported)
                .find("'pattern' at #/properties/a"),
            std::string::npos);
  for (const char* text : {R"({"oneOf":[{}]})", R"({"type":"integer","minimum":1})",
                           R"({"type":"string","format":"date"})", R"({"not":{}})"})
    EXPECT_NE(words_of(text, ErrorCode::kUnsupported).find("is not supported"), std::string::npos);
  for (const char* text :
       {R"({"type":"real"})", R"({"$ref":"#/nowhere"})", R"({"enum":[]})", "[]", "false",
        R"({"type":"object","properties":{"me":{"$ref":"#"}},"required":["me"]})",
        R"({"$ref":"#"})", R"({"type":"string","minLength":3,"maxLength":2})"})
    EXPECT_NE(words_of(text, ErrorCode::kInvalidArgument), "it was taken") << text;
  words_of("{", ErrorCode::kCorrupt);
}

/// Whatever is drawn is a document in the end, whichever tokens come.
// Each character of a string that has a longest length is a state of its own.
TEST(Form, RemembersLittleOfLongAnswers) {
  const auto form = schema(
      R"({"type":"array","items":{"type":"string","maxLength":1000},"minItems":12,"maxItems":12})");
  EXPECT_EQ(form->bytes_remembered(), 0u);
  const auto token = [](const char* text) {
    const auto ids = tokenizer().encode(text, false);
    EXPECT_EQ(ids.size(), 1u) << text;
    return ids[0];
  };
  const int32_t x = token("x"), quote = token("\""), comma = token(",");
  FormFollower follower(form, {0});
  size_t most = 0;
  const auto push = [&](int32_t id) {
    ASSERT_TRUE(allowed(follower.mask(), id)) << id;
    follower.push(id);
    most = std::max(most, form->bytes_remembered());
  };
  push(token("["));
  for (int item = 0; item < 12; ++item) {
    if (item > 0) push(comma);
    push(quote);
    for (int i = 0; i < 1000; ++i) push(x);
    EXPECT_FALSE(allowed(follower.mask(), x));
    push(quote);
  }
  EXPECT_FALSE(allowed(follower.mask(), comma));
  push(token("]"));
  EXPECT_TRUE(follower.may_end());
  EXPECT_GT(most, size_t{7} << 20);
  EXPECT_LT(most, size_t{9} << 20);
}

TEST(Form, RandomAnswersParse) {
  const auto form = schema(
      R"({"type":"object","properties":{"name":{"type":"string","maxLength":12},"list":{"type":
      "array","items":{"anyOf":[{"type":"number"},{"type":"null"}]},"maxItems":3},"more":
      {"type":"object","additionalProperties":{"type":"boolean"}}},"required":["name","list"],
      "additionalProperties":false})");
  std::mt19937 random(7);
  const int32_t end = tokenizer().eos();
  int whole = 0;
  for (int round = 0; round < 40; ++round) {
    FormFollower follower(form, {end});
    std::string text;
    for (int step = 0; step < 400 && !follower.complete(); ++step) {
      const auto mask = follower.mask();
      std::vector<int32_t> may;
      for (int32_t id = 0; id < tokenizer().vocab_size(); ++id)
        if (allowed(mask, id)) may.push_back(id);
      ASSERT_FALSE(may.empty()) << text;
      const int32_t id = may[random() % may.size()];
      if (id == end) break;
      text += tokenizer().piece(id);
      follower.push(id);
    }
    if (!follower.may_end()) continue;
    ++whole;
    const Json json = Json::parse(text);
    EXPECT_LE(json["list"].size(), 3u);
    EXPECT_TRUE(json["name"].is_string());
  }
  EXPECT_GT(whole, 10);
}

TEST(Form, CallsOfTools) {
  const std::vector<FormTool> tools = {
      {"add", R"({"type":"object","properties":{"a":{"type":"integer","minimum":0}},
              "required":["a"]})"},
      {"stop"}};
  const auto calls = AnswerForm::tool_calls(tools, {}, vocabulary());
  const std::string call =
      "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  EXPECT_TRUE(takes(calls, "Well. " + call));
  EXPECT_TRUE(takes(calls, call + "\n" + call));
  EXPECT_TRUE(takes(calls, "no call"));
  EXPECT_FALSE(takes(calls, "<tool_call>\n{\"name\": \"sub\""));
  EXPECT_FALSE(takes(calls, "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": \"1\"}"));
  FormCalls begun;
  begun.begun = true;
  const auto forced = AnswerForm::tool_calls(tools, begun, vocabulary());
  EXPECT_FALSE(takes(forced, "no call"));
  EXPECT_FALSE(takes(forced, R"({"name": "stop", "arguments": {}})"));
  EXPECT_TRUE(takes(forced, "{\"name\": \"stop\", \"arguments\": {}}\n</tool_call>"));
  EXPECT_THROW(
      AnswerForm::tool_calls({{"x", R"({"type":"string","pattern":"a"})", true}}, {}, vocabulary()),
      Error);
}

TEST(Form, HoldsGenerateToIt) {
  const auto model = Model::load(repo_dir() / "models/demo");
  StandaloneOptions own;
  own.context = 400;
  own.threads = 1;
  Session session(model, own);
  GenerateOptions options;
  options.max_tokens = 200;
  options.form = schema(
      R"({"type":"object","properties":{"ship":{"type":"string","maxLength":20},"old":
      {"type":"boolean"}},"required":["ship","old"],"additionalProperties":false})");
  const auto result = generate(session, tokenizer().encode("The ship lay"), options);
  EXPECT_EQ(result.reason, StopReason::kEndOfText);
  const Json json = Json::parse(result.text);
  EXPECT_TRUE(json["ship"].is_string() && json["old"].is_boolean()) << result.text;
  options.ignore_eos = true;
  EXPECT_THROW(generate(session, tokenizer().encode("x"), options), Error);
}

}  // namespace
}  // namespace pith
