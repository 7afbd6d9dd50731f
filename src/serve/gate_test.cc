// The gate: what is taken, and what is refused by the name of its field.

#include "serve/gate.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "serve/forms.h"
#include "serve/refusal.h"

namespace pith::serve {
namespace {

const GateOptions kOptions{.sampling = {.seed = 0}, .vocabulary = 100, .context = 64};

Call chat(const std::string& more) {
  return chat_call(parse_object(R"({"messages":[{"role":"user","content":"Hi"}])" +
                                (more.empty() ? "" : "," + more) + "}"),
                   kOptions);
}

/// The field that is named; "" if the call is taken.
std::string refused(const std::string& more) {
  try {
    chat(more);
  } catch (const Refusal& r) {
    EXPECT_EQ(r.status, 400);
    return r.param.empty() ? r.code : r.param;
  }
  return "";
}

TEST(Gate, NumbersHaveRanges) {
  for (const char* bad : {R"("temperature":-1)", R"("temperature":"1")", R"("temperature":1e999)",
                          R"("temperature":101)"})
    EXPECT_TRUE(refused(bad) == "temperature" || refused(bad) == "invalid_json") << bad;
  for (const char* bad : {R"("n":0)", R"("n":9)", R"("n":1.5)", R"("n":18446744073709551615)",
                          R"("n":-9223372036854775808)", R"("n":true)"})
    EXPECT_EQ(refused(bad), "n") << bad;
  EXPECT_EQ(chat(R"("n":2.0)").n, 2u);
  EXPECT_EQ(refused(R"("top_logprobs":21,"logprobs":true)"), "top_logprobs");
  EXPECT_EQ(refused(R"("top_logprobs":2)"), "top_logprobs");
  EXPECT_EQ(chat(R"("top_logprobs":2,"logprobs":true)").logprobs, 2);
  EXPECT_EQ(chat(R"("logprobs":true)").logprobs, 0);
  EXPECT_EQ(chat("").logprobs, -1);
}

TEST(Gate, PenaltiesAndBias) {
  const Call call =
      chat(R"("presence_penalty":1.5,"frequency_penalty":-0.5,"logit_bias":{"7":-100,"8":2})");
  EXPECT_EQ(call.sampling.presence_penalty, 1.5f);
  EXPECT_EQ(call.sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(call.sampling.logit_bias,
            (std::vector<std::pair<int32_t, float>>{{7, -100.0f}, {8, 2.0f}}));
  EXPECT_EQ(refused(R"("presence_penalty":2.1)"), "presence_penalty");
  for (const char* bad : {R"({"100":1})", R"({"-1":1})", R"({"7x":1})", R"({"":1})", R"({"7":101})",
                          R"({"7":"1"})", "[7]"})
    EXPECT_EQ(refused(fmt::format("\"logit_bias\":{}", bad)), "logit_bias") << bad;
}

TEST(Gate, NullIsAbsentEverywhere) {
  for (const char* name :
       {"model", "max_tokens", "stream", "stream_options", "temperature", "top_p", "seed", "stop",
        "n", "logit_bias", "logprobs", "response_format", "tools", "tool_choice", "pith",
        "priority", "audio", "chat_template_kwargs"})
    EXPECT_EQ(refused(fmt::format("\"{}\":null", name)), "") << name;
}

TEST(Gate, TheNewerLimitWins) {
  EXPECT_EQ(chat(R"("max_tokens":5,"max_completion_tokens":3)").max_tokens, 3);
  EXPECT_EQ(chat(R"("max_tokens":5)").max_tokens, 5);
  EXPECT_EQ(chat("").max_tokens, -1);
}

TEST(Gate, SeedsAreKeptWhole) {
  EXPECT_EQ(chat(R"("seed":-7)").sampling.seed, static_cast<uint64_t>(-7));
  EXPECT_TRUE(chat(R"("seed":0)").seeded);
  EXPECT_FALSE(chat(R"("seed":-1)").seeded);
  EXPECT_FALSE(chat("").seeded);
}

TEST(Gate, WhatWouldChangeAnAnswerIsRefusedByName) {
  EXPECT_EQ(refused(R"("tools":[{"type":"function"}])"), "tools[0].function");
  EXPECT_EQ(refused(R"("tools":[{"type":"web"}])"), "tools[0].type");
  EXPECT_EQ(refused(R"("tools":[{"type":"function"}],"tool_choice":"none")"), "");
  EXPECT_EQ(refused(R"("functions":[])"), "functions");
  EXPECT_EQ(refused(R"("grammar":"root ::= a")"), "grammar");
  EXPECT_EQ(refused(R"("modalities":["text","audio"])"), "modalities");
  EXPECT_EQ(refused(R"("response_format":{"type":"yaml"})"), "response_format.type");
  EXPECT_EQ(refused(R"("response_format":{"type":"json_object"},"ignore_eos":true)"), "ignore_eos");
  EXPECT_EQ(refused(R"("response_format":{"type":"text"})"), "");
  EXPECT_EQ(refused(R"("chat_template_kwargs":{"tools":1})"), "chat_template_kwargs.tools");
  EXPECT_EQ(refused(R"("pith":{"polcy":"exact"})"), "pith.polcy");
  EXPECT_EQ(refused(R"("user":"me","metadata":{},"store":false,"unheard":1)"), "");
}

TEST(Gate, FormsAndTools) {
  Call call = chat(R"("response_format":{"type":"json_schema","json_schema":{"name":"a","schema":
      {"type":"null"}}})");
  EXPECT_TRUE(call.json);
  EXPECT_EQ(call.schema, R"({"type":"null"})");
  EXPECT_EQ(call.schema_field, "response_format.json_schema.schema");
  EXPECT_EQ(chat(R"("json_schema":{})").schema, "{}");
  EXPECT_TRUE(chat(R"("response_format":{"type":"json_object"})").schema.empty());

  const std::string tools = R"("tools":[{"type":"function","function":{"name":"f","strict":true}},
      {"type":"function","function":{"name":"g","parameters":{"type":"object"}}}])";
  call = chat(tools.c_str());
  EXPECT_EQ(call.callable.size(), 2u);
  EXPECT_TRUE(call.callable[0].strict && !call.must_call && call.many_calls);
  EXPECT_EQ(call.callable[1].parameters, R"({"type":"object"})");
  call = chat((tools + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})").c_str());
  EXPECT_TRUE(call.must_call);
  EXPECT_EQ(call.callable.size(), 1u);
  EXPECT_TRUE(chat((tools + R"(,"tool_choice":"none")").c_str()).callable.empty());
  EXPECT_EQ(
      refused((tools + R"(,"tool_choice":{"type":"function","function":{"name":"h"}})").c_str()),
      "tool_choice");
  EXPECT_EQ(refused(R"("tool_choice":"required")"), "tool_choice");
}

TEST(Gate, ToolsAsClientsSendThem) {
  const std::string tools = R"("tools":[{"function":{"name":"now"}},
      {"type":"function","function":{"name":"add","parameters":{"type":"object"}}}])";
  const std::string none = R"({"type":"object","properties":{},"additionalProperties":false})";
  EXPECT_EQ(chat(tools).callable.at(0).parameters, none);
  const auto choice = [&](const char* mode, const char* name) {
    return tools + fmt::format(R"(,"tool_choice":{{"type":"allowed_tools","allowed_tools":
        {{"mode":"{}","tools":[{{"type":"function","function":{{"name":"{}"}}}}]}}}})",
                               mode, name);
  };
  const Call call = chat(choice("auto", "add"));
  ASSERT_EQ(call.callable.size(), 1u);
  EXPECT_EQ(call.callable[0].name, "add");
  EXPECT_FALSE(call.must_call);
  EXPECT_TRUE(chat(choice("required", "add")).must_call);
  EXPECT_EQ(refused(choice("auto", "sub")), "tool_choice");
  EXPECT_EQ(refused(choice("none", "add")), "tool_choice.allowed_tools.mode");
  for (const char* other : {"grammar", "guided_json", "guided_regex", "guided_choice",
                            "guided_grammar", "structured_outputs", "regex", "ebnf"})
    EXPECT_EQ(refused(fmt::format("\"{}\":\"x\"", other)), other);
}

TEST(Gate, StrictMeansEveryField) {
  GateOptions strict = kOptions;
  strict.strict = true;
  const auto body = [](const char* more) {
    return parse_object(
        fmt::format(R"({{"messages":[{{"role":"user","content":"a"}}],{}}})", more));
  };
  EXPECT_THROW(chat_call(body(R"("unheard":1)"), strict), Refusal);
  EXPECT_NO_THROW(chat_call(body(R"("user":"a","stream":true,"unheard":null)"), strict));
}

TEST(Gate, MessagesAreCheckedOneByOne) {
  const auto of = [](const std::string& messages) {
    try {
      chat_call(parse_object(fmt::format(R"({{"messages":{}}})", messages)), kOptions);
    } catch (const Refusal& r) {
      return r.param;
    }
    return std::string();
  };
  EXPECT_EQ(of("5"), "messages");
  EXPECT_EQ(of("[]"), "messages");
  EXPECT_EQ(of(R"([5])"), "messages[0]");
  EXPECT_EQ(of(R"([{"role":"user","content":"a"},{"content":"b"}])"), "messages[1].role");
  EXPECT_EQ(of(R"([{"role":"boss","content":"b"}])"), "messages[0].role");
  EXPECT_EQ(of(R"([{"role":"user","content":[{"type":"text","text":5}]}])"),
            "messages[0].content[0].text");
  EXPECT_EQ(of(R"([{"role":"user","content":[{"type":"image_url"}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(of(R"([{"role":"assistant","content":"b"}])"), "messages");
}

TEST(Gate, PartsAreJoinedAndRolesTranslated) {
  const Call call = chat_call(
      parse_object(R"({"messages":[{"role":"developer","content":"S"},{"role":"user","content":)"
                   R"([{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
                   R"({"role":"assistant","content":"so"}]})"),
      kOptions);
  ASSERT_EQ(call.messages.size(), 2u);
  EXPECT_EQ(call.messages[0], R"({"role":"system","content":"S"})");
  EXPECT_EQ(call.messages[1], R"({"role":"user","content":"ab"})");
  EXPECT_EQ(call.answer_begins, "so");
  EXPECT_EQ(call.opens_turn, (std::vector<bool>{false, true}));
}

TEST(Gate, PromptsAreTextOrTokens) {
  const auto prompts = [](const char* prompt) {
    return text_call(parse_object(fmt::format(R"({{"prompt":{}}})", prompt)), kOptions).prompts;
  };
  EXPECT_EQ(prompts(R"("a")")[0].text, "a");
  EXPECT_EQ(prompts("[1,2]")[0].ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(prompts(R"(["a","b"])").size(), 2u);
  EXPECT_EQ(prompts("[[1],[2,3]]")[1].ids, (std::vector<int32_t>{2, 3}));
  for (const char* bad : {"5", "[100]", "[-1]", "[1.5]", R"([1,"a"])", R"([["a"]])", "null"})
    EXPECT_THROW(prompts(bad), Refusal) << bad;
}

TEST(Gate, AgentsSayTheSameInOtherWords) {
  const auto text = [](const Call& call) {
    std::string out;
    for (const std::string& message : call.messages) out += message;
    return out;
  };
  const Call chat_form = chat_call(
      parse_object(R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"a"}],)"
                   R"("max_tokens":5,"stop":["x"],"stream":true})"),
      kOptions);
  const Call responses = responses_call(
      parse_object(R"({"instructions":"S","input":[{"role":"user","content":)"
                   R"([{"type":"input_text","text":"a"}]}],"max_output_tokens":5,"stream":true})"),
      kOptions);
  const Call messages = messages_call(
      parse_object(
          R"({"system":[{"type":"text","text":"S"}],"messages":[{"role":"user","content":"a"}],)"
          R"("max_tokens":5,"stop_sequences":["x"],"stream":true})"),
      kOptions);
  EXPECT_EQ(text(responses), text(chat_form));
  EXPECT_EQ(text(messages), text(chat_form));
  EXPECT_EQ(messages.stop, chat_form.stop);
  EXPECT_EQ(messages.max_tokens, 5);
  EXPECT_EQ(responses.max_tokens, 5);
  EXPECT_TRUE(messages.stream && responses.stream);
  EXPECT_EQ(responses_call(parse_object(R"({"input":"a"})"), kOptions).messages.size(), 1u);
  for (const char* bad :
       {R"({"input":[]})", R"({"input":5})", R"({"input":"a","tools":[{}]})",
        R"({"input":"a","previous_response_id":"r"})", R"({"input":[{"type":"function_call"}]})",
        R"({"input":"a","text":{"format":{"type":"yaml"}}})"})
    EXPECT_THROW(responses_call(parse_object(bad), kOptions), Refusal) << bad;
  EXPECT_THROW(
      messages_call(parse_object(R"({"messages":[{"role":"user","content":"a"}]})"), kOptions),
      Refusal);  // max_tokens is Anthropic's must
}

/// The input of the template and of the form.
std::string said(const Call& call) {
  std::string out = call.tools + "\n";
  for (const std::string& message : call.messages) out += message + "\n";
  for (const FormTool& tool : call.callable)
    out += fmt::format("{} {} {}\n", tool.name, tool.parameters, tool.strict);
  return out + fmt::format("{} {}", call.must_call, call.many_calls);
}

TEST(Gate, AgentsCallToolsAsChatsDo) {
  const Call chat_form = chat_call(
      parse_object(
          R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b",)"
          R"("tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":)"
          R"("{\"x\":1}"}},{"id":"2","type":"function","function":{"name":"g","arguments":"{}"}}]},)"
          R"({"role":"tool","tool_call_id":"1","content":"c"},)"
          R"({"role":"tool","tool_call_id":"2","content":"Error: d"},{"role":"user","content":"e"}],)"
          R"("tools":[{"type":"function","function":{"name":"f","description":"F",)"
          R"("parameters":{"type":"object"}}},{"type":"function","function":{"name":"g"}}],)"
          R"("tool_choice":{"type":"function","function":{"name":"f"}},"parallel_tool_calls":false})"),
      kOptions);
  const Call responses = responses_call(
      parse_object(R"({"input":[{"role":"user","content":"a"},{"role":"assistant","content":"b"},)"
                   R"({"type":"function_call","call_id":"1","name":"f","arguments":"{\"x\":1}"},)"
                   R"({"type":"function_call","call_id":"2","name":"g","arguments":"{}"},)"
                   R"({"type":"function_call_output","call_id":"1","output":"c"},)"
                   R"({"type":"function_call_output","call_id":"2","output":)"
                   R"([{"type":"input_text","text":"Error: d"}]},{"role":"user","content":"e"}],)"
                   R"("tools":[{"type":"function","name":"f","description":"F",)"
                   R"("parameters":{"type":"object"}},{"type":"function","name":"g"}],)"
                   R"("tool_choice":{"type":"function","name":"f"},"parallel_tool_calls":false})"),
      kOptions);
  const Call messages = messages_call(
      parse_object(
          R"({"max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"assistant",)"
          R"("content":[{"type":"text","text":"b"},{"type":"tool_use","id":"1","name":"f",)"
          R"("input":{"x":1}},{"type":"tool_use","id":"2","name":"g","input":{}}]},)"
          R"({"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":"c"},)"
          R"({"type":"tool_result","tool_use_id":"2","is_error":true,"content":)"
          R"([{"type":"text","text":"d"}]},{"type":"text","text":"e"}]}],)"
          R"("tools":[{"name":"f","description":"F","input_schema":{"type":"object"}},)"
          R"({"type":"custom","name":"g"}],)"
          R"("tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true}})"),
      kOptions);
  EXPECT_EQ(said(responses), said(chat_form));
  EXPECT_EQ(said(messages), said(chat_form));
  EXPECT_EQ(chat_form.callable.size(), 1u);
}

TEST(Gate, EmptyArgumentsAreNoneAndThoughtsOfOthersAreSkipped) {
  const auto talk = [](const std::string& arguments) {
    return said(chat_call(
        parse_object(
            R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[)"
            R"({"id":"1","type":"function","function":{"name":"f","arguments":")" +
            arguments + R"("}}]},{"role":"tool","tool_call_id":"1","content":"c"}]})"),
        kOptions));
  };
  EXPECT_EQ(talk(""), talk("{}"));
  EXPECT_EQ(talk(" "), talk("{}"));
  const auto responses = [](const std::string& before) {
    return said(responses_call(
        parse_object(R"({"input":[)" + before + R"({"role":"user","content":"a"}]})"), kOptions));
  };
  EXPECT_EQ(responses(R"({"type":"reasoning","id":"r","summary":[]},)"), responses(""));
  EXPECT_THROW(
      responses_call(parse_object(R"({"input":[{"type":"reasoning","id":"r"}]})"), kOptions),
      Refusal);
  const auto messages = [](const std::string& thought) {
    return said(messages_call(
        parse_object(R"({"max_tokens":5,"messages":[{"role":"user","content":"a"},)"
                     R"({"role":"assistant","content":[)" +
                     thought + R"({"type":"text","text":"b"}]},{"role":"user","content":"c"}]})"),
        kOptions));
  };
  EXPECT_EQ(messages(R"({"type":"thinking","thinking":"t","signature":"s"},)"), messages(""));
}

TEST(Gate, ToolsOfAgentsAreRefusedByTheirOwnNames) {
  const auto param = [](const auto& call, const std::string& more) -> std::string {
    try {
      call(parse_object(
          R"({"max_tokens":5,"input":"a","messages":[{"role":"user","content":"a"}],)" + more +
          "}"));
    } catch (const Refusal& r) {
      return r.param;
    }
    return "";
  };
  const auto responses = [](const Json& body) { responses_call(body, kOptions); };
  const auto messages = [](const Json& body) { messages_call(body, kOptions); };
  EXPECT_EQ(param(responses, R"("tools":[{"type":"function"}])"), "tools[0].name");
  EXPECT_EQ(param(responses, R"("tools":[{"type":"web_search"}])"), "tools[0].type");
  EXPECT_EQ(param(responses, R"("tool_choice":{"type":"file_search"})"), "tool_choice.type");
  EXPECT_EQ(param(responses, R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(param(messages, R"("tools":[{}])"), "tools[0].name");
  EXPECT_EQ(param(messages, R"("tools":[{"type":"bash_20250124"}])"), "tools[0].type");
  EXPECT_EQ(param(messages, R"("tools":[{"name":"f"}],"tool_choice":{"type":"all"})"),
            "tool_choice.type");
  EXPECT_EQ(param(messages, R"("tools":[{"name":"f"}],"tool_choice":{"type":"tool","name":"h"})"),
            "tool_choice");
  EXPECT_EQ(param(messages, R"("tools":[{"name":"f"}],"tool_choice":{"type":"none"})"), "");
}

TEST(Gate, WhatIsInTheMiddle) {
  const Call call = infill_call(
      parse_object(R"({"input_prefix":"a","prompt":"b","input_suffix":"c","n_predict":7})"),
      kOptions);
  ASSERT_EQ(call.prompts.size(), 1u);
  EXPECT_EQ(call.prompts[0].text, "ab");
  EXPECT_EQ(call.prompts[0].suffix, "c");
  EXPECT_EQ(call.max_tokens, 7);
  EXPECT_THROW(text_call(parse_object(R"({"prompt":[1],"suffix":"c"})"), kOptions), Refusal);
}

TEST(Gate, WholeNumbersAreNotRounded) {
  const auto param = [](const std::string& body) -> std::string {
    try {
      chat_call(parse_object(body), kOptions);
    } catch (const Refusal& r) {
      EXPECT_EQ(r.status, 400);
      return r.param;
    }
    return "";
  };
  const auto with = [](const std::string& more) {
    return R"({"messages":[{"role":"user","content":"Hi"}],)" + more + "}";
  };
  EXPECT_EQ(param(with(R"("seed":18446744073709551616)")), "seed");
  EXPECT_EQ(param(with(R"("logit_bias":{"7":-9223372036854775809})")), "logit_bias.7");
  EXPECT_EQ(param(with(R"("tools":[{"type":"function","function":{"name":"f","parameters":)"
                       R"({"enum":[1,99999999999999999999]}}}])")),
            "tools[0].function.parameters.enum[1]");
  EXPECT_EQ(param(with(R"("seed":9223372036854775807)")), "");
  EXPECT_EQ(param(with(R"("metadata":{"a":18446744073709551615,"b":1e30,"c":-0.1})")), "");
  const auto with_call = [](const std::string& arguments) {
    return R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":)"
           R"([{"type":"function","function":{"name":"f","arguments":)" +
           Json(arguments).dump() + R"(}}]},{"role":"user","content":"b"}]})";
  };
  const std::string field = "messages[1].tool_calls[0].function.arguments";
  const auto carried = [&](const std::string& arguments) {
    const Call call = chat_call(parse_object(with_call(arguments)), kOptions);
    EXPECT_NE(
        tools_as_text(call).messages[1].find(Json(arguments).dump().substr(1, arguments.size())),
        std::string::npos)
        << tools_as_text(call).messages[1];
    return call.messages[1].find(R"("arguments":)" + arguments + "}") != std::string::npos;
  };
  for (const std::string kept :
       {R"({"id":[0,36893488147419103232]})", R"({"id":-9223372036854775809,"a":"b\"\\"})",
        R"({"a\u0000":"99999999999999999999","b":[18446744073709551616,-1,1.5]})",
        R"({"\u0000wide 7":1,"a":"b\"\u0000wide 7"})"})
    EXPECT_TRUE(carried(kept)) << kept;
  EXPECT_EQ(param(with_call(R"({"id":["\u0000wide 7"]})")), field + ".id[0]");
  EXPECT_EQ(param(with_call(std::string(100000, '['))), field);  // nested too deep to be written
  EXPECT_EQ(param(with_call(R"({"id":12)")), "");                // an answer that was cut

  // Arguments as an object, which Anthropic's clients send and OpenAI's may.
  const std::string big = R"({"id":[0,36893488147419103232]})";
  const std::string blocks =
      R"({"max_tokens":5,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":)"
      R"([{"type":"tool_use","id":"1","name":"f","input":)" +
      big + R"(}]},{"role":"user","content":"b"}]})";
  EXPECT_NE(messages_call(parse_object(blocks), kOptions).messages[1].find(big), std::string::npos);
  const auto as_object = [&](const std::string& arguments) {
    return R"({"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":)"
           R"([{"type":"function","function":{"name":"f","arguments":)" +
           arguments + R"(}}]},{"role":"user","content":"b"}]})";
  };
  EXPECT_NE(chat_call(parse_object(as_object(big)), kOptions).messages[1].find(big),
            std::string::npos);
  EXPECT_EQ(param(as_object("36893488147419103232")), field);
  EXPECT_EQ(param(R"({"input":{"a":[36893488147419103232]}})"), "input.a[0]");
  EXPECT_EQ(param("36893488147419103232"), "");
}

TEST(Gate, JsonHasLimits) {
  const std::string deep = R"({"a":)" + std::string(70, '[') + std::string(70, ']') + "}";
  std::string wide = R"({"a":[0)";
  for (size_t i = 0; i < kMostValues; ++i) wide += ",0";
  for (const std::string& bad :
       {deep, wide + "]}", std::string(R"({"a":1,"a":2})"), std::string("[]"), std::string("{"),
        std::string("{\"a\":\"\xff\"}"), std::string(R"({"a":NaN})"), std::string("")})
    EXPECT_THROW(parse_object(bad), Refusal) << bad.substr(0, 40);
  EXPECT_NO_THROW(parse_object(R"({"a":{"a":1},"b":{"a":2}})"));
}

}  // namespace
}  // namespace pith::serve
