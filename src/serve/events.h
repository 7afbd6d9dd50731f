#pragma once
// Answers in OpenAI's form: the events of streams, byte for byte, and whole answers.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pith/generate.h"
#include "serve/call.h"
#include "serve/json_gate.h"

namespace pith::serve {

/// A token as log-probabilities show it.
struct TokenShown {
  struct Other {
    std::string bytes;
    float logprob = 0;
  };
  std::string bytes;  ///< the text of its own; may be part of a character
  float logprob = 0;
  std::vector<Other> likeliest;
};

/// Fields of all events of an answer.
struct AnswerHead {
  Form form = Form::kChat;
  std::string id, model, fingerprint;
  int64_t created = 0;
  bool usage_asked = false;  ///< stream_options.include_usage
};

struct Usage {
  size_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
};

/// A call of a tool in an answer.
struct ToolCall {
  std::string id, name;
  std::string arguments;  ///< JSON
};

/// One choice of a whole answer.
struct Choice {
  std::string text;
  std::string finish;  ///< finish_reason
  std::vector<TokenShown> tokens;
  std::optional<std::vector<int32_t>> ids;  ///< if they were asked for
  std::vector<ToolCall> calls;
};

/// "stop" or "length".
const char* finish_reason(StopReason reason);

/// "data: {...}\n\n", one line whatever the text.
std::string event(const Json& json);
inline constexpr std::string_view kDone = "data: [DONE]\n\n";
inline constexpr std::string_view kPing = ": ping\n\n";

/// The first event of a chat's choice.
std::string role_event(const AnswerHead& head, size_t index);
/// `tokens`: those of the piece, where log-probabilities were asked for; `offset`: the bytes of
/// text before them.
/// Ids of tokens that were drawn, for who asked for them.
std::string tokens_event(const AnswerHead& head, size_t index, std::span<const int32_t> ids);
std::string text_event(const AnswerHead& head, size_t index, std::string_view piece,
                       std::span<const TokenShown> tokens, bool logprobs, size_t offset);
/// A call's beginning, and a piece of its arguments.
std::string call_event(const AnswerHead& head, size_t index, size_t call, const ToolCall& begins);
std::string arguments_event(const AnswerHead& head, size_t index, size_t call,
                            std::string_view piece);
std::string end_event(const AnswerHead& head, size_t index, std::string_view finish);
std::string usage_event(const AnswerHead& head, const Usage& usage, const Json& more);
std::string progress_event(const AnswerHead& head, const Json& progress);

/// {"prompt_tokens":...}
Json usage_json(const Usage& usage);
/// The whole answer.
std::string answer_json(const AnswerHead& head, std::span<const Choice> choices, bool logprobs,
                        const Usage& usage, const Json& more);

}  // namespace pith::serve
