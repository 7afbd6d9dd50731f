// Streams and answers byte for byte.

#include "serve/events.h"

#include <gtest/gtest.h>

namespace pith::serve {
namespace {

AnswerHead head(Form form, bool usage) {
  return {form, "chatcmpl-K", "demo", "pith-0.1.0-P", 1757141666, usage};
}

TEST(Events, OfAChat) {
  const AnswerHead h = head(Form::kChat, true);
  const std::string start =
      R"(data: {"id":"chatcmpl-K","object":"chat.completion.chunk","created":1757141666,)"
      R"("model":"demo","system_fingerprint":"pith-0.1.0-P","choices":[)";
  EXPECT_EQ(role_event(h, 0),
            start + R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,)"
                    R"("finish_reason":null}],"usage":null})"
                    "\n\n");
  EXPECT_EQ(text_event(h, 1, "The\n\"", {}, false, 0),
            start + R"({"index":1,"delta":{"content":"The\n\""},"logprobs":null,)"
                    R"("finish_reason":null}],"usage":null})"
                    "\n\n");
  EXPECT_EQ(end_event(h, 0, "stop"),
            start + R"({"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}],)"
                    R"("usage":null})"
                    "\n\n");
  EXPECT_EQ(usage_event(h, {44, 48, 36}, {{"pith", 1}}),
            start + R"(],"usage":{"prompt_tokens":44,"completion_tokens":48,"total_tokens":92,)"
                    R"("prompt_tokens_details":{"cached_tokens":36}},"pith":1})"
                    "\n\n");
}

TEST(Events, OfATextWithoutUsage) {
  const AnswerHead h = head(Form::kText, false);
  EXPECT_EQ(text_event(h, 0, "The", {}, false, 0),
            R"(data: {"id":"chatcmpl-K","object":"text_completion","created":1757141666,)"
            R"("model":"demo","system_fingerprint":"pith-0.1.0-P","choices":[{"index":0,)"
            R"("text":"The","logprobs":null,"finish_reason":null}]})"
            "\n\n");
}

TEST(Events, PartsOfCharactersAreShownAndTheirBytesExact) {
  const TokenShown token{"\xc3", -0.5f, {{"\xc3", -0.5f}, {"a", -1.5f}}};
  const std::string text = text_event(head(Form::kChat, false), 0, "\u00e9", {&token, 1}, true, 0);
  EXPECT_NE(text.find(R"("logprobs":{"content":[{"token":")"
                      "\xef\xbf\xbd"
                      R"(","logprob":-0.5,"bytes":[195],"top_logprobs":[{"token":)"),
            std::string::npos)
      << text;
  EXPECT_EQ(text.find('\n'), text.size() - 2);
}

TEST(Events, OffsetsOfTextsCountBytes) {
  const TokenShown tokens[] = {{"ab", -1.0f, {}}, {"c", -2.0f, {}}};
  const std::string text = text_event(head(Form::kText, false), 0, "abc", tokens, true, 7);
  EXPECT_NE(text.find(R"("text_offset":[7,9])"), std::string::npos) << text;
}

TEST(Events, AWholeAnswer) {
  const Choice choices[] = {{"a", "stop", {}, {}, {}},
                            {"b", "length", {}, {{5, 6}}, {}},
                            {"", "stop", {}, std::vector<int32_t>(), {}}};
  EXPECT_EQ(
      answer_json(head(Form::kChat, false), choices, false, {3, 2, 0}, Json::object()),
      R"({"id":"chatcmpl-K","object":"chat.completion","created":1757141666,"model":"demo",)"
      R"("system_fingerprint":"pith-0.1.0-P","choices":[{"index":0,"message":{"role":)"
      R"("assistant","content":"a","refusal":null},"logprobs":null,"finish_reason":"stop"},)"
      R"({"index":1,"message":{"role":"assistant","content":"b","refusal":null},)"
      R"("logprobs":null,"finish_reason":"length","tokens":[5,6]},)"
      R"({"index":2,"message":{"role":"assistant","content":"","refusal":null},)"
      R"("logprobs":null,"finish_reason":"stop","tokens":[]}],"usage":{"prompt_tokens":3,)"
      R"("completion_tokens":2,"total_tokens":5,"prompt_tokens_details":{"cached_tokens":0}}})");
}

TEST(Events, Reasons) {
  EXPECT_STREQ(finish_reason(StopReason::kEndOfText), "stop");
  EXPECT_STREQ(finish_reason(StopReason::kStopString), "stop");
  EXPECT_STREQ(finish_reason(StopReason::kMaxTokens), "length");
  EXPECT_STREQ(finish_reason(StopReason::kContextFull), "length");
  EXPECT_STREQ(finish_reason(StopReason::kAttentionError), "length");
}

}  // namespace
}  // namespace pith::serve
