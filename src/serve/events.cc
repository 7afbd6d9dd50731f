#include "serve/events.h"

namespace pith::serve {
namespace {

Json byte_list(const std::string& bytes) {
  Json out = Json::array();
  for (const char c : bytes) out.push_back(static_cast<unsigned char>(c));
  return out;
}

Json chat_token(const TokenShown& t) {
  Json likeliest = Json::array();
  for (const auto& other : t.likeliest)
    likeliest.push_back(
        {{"token", other.bytes}, {"logprob", other.logprob}, {"bytes", byte_list(other.bytes)}});
  return {{"token", t.bytes},
          {"logprob", t.logprob},
          {"bytes", byte_list(t.bytes)},
          {"top_logprobs", likeliest}};
}

Json logprobs_json(Form form, std::span<const TokenShown> tokens, size_t offset) {
  if (form == Form::kChat) {
    Json content = Json::array();
    for (const TokenShown& t : tokens) content.push_back(chat_token(t));
    return {{"content", content}, {"refusal", nullptr}};
  }
  Json names = Json::array(), own = Json::array(), top = Json::array(), at = Json::array();
  for (const TokenShown& t : tokens) {
    names.push_back(t.bytes);
    own.push_back(t.logprob);
    Json likeliest = Json::object();
    for (const auto& other : t.likeliest) likeliest.emplace(other.bytes, other.logprob);
    top.push_back(likeliest);
    at.push_back(offset);
    offset += t.bytes.size();
  }
  return {{"tokens", names}, {"token_logprobs", own}, {"top_logprobs", top}, {"text_offset", at}};
}

Json head_json(const AnswerHead& head, bool chunk) {
  const char* object = head.form == Form::kText ? "text_completion"
                       : chunk                  ? "chat.completion.chunk"
                                                : "chat.completion";
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint}};
}

std::string choice_event(const AnswerHead& head, const Json& choice) {
  Json json = head_json(head, true);
  json["choices"] = Json::array({choice});
  if (head.usage_asked) json["usage"] = nullptr;
  return event(json);
}

Json delta_choice(const AnswerHead& head, size_t index, const Json& delta, std::string_view text) {
  Json out{{"index", index}};
  if (head.form == Form::kChat)
    out["delta"] = delta;
  else
    out["text"] = text;
  out["logprobs"] = nullptr;
  out["finish_reason"] = nullptr;
  return out;
}

Json call_json(const ToolCall& call) {
  return {{"id", call.id},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

Json message_json(const Choice& c) {
  Json out{{"role", "assistant"}, {"content", c.text}, {"refusal", nullptr}};
  if (c.calls.empty()) return out;
  if (c.text.empty()) out["content"] = nullptr;
  out["tool_calls"] = Json::array();
  for (const ToolCall& call : c.calls) out["tool_calls"].push_back(call_json(call));
  return out;
}

}  // namespace

const char* finish_reason(StopReason reason) {
  return reason == StopReason::kEndOfText || reason == StopReason::kStopString ? "stop" : "length";
}

std::string event(const Json& json) { return "data: " + dump(json) + "\n\n"; }

std::string role_event(const AnswerHead& head, size_t index) {
  return choice_event(head,
                      delta_choice(head, index, {{"role", "assistant"}, {"content", ""}}, ""));
}

std::string tokens_event(const AnswerHead& head, size_t index, std::span<const int32_t> ids) {
  Json choice = delta_choice(head, index, Json::object(), "");
  choice["tokens"] = ids;
  return choice_event(head, choice);
}

std::string text_event(const AnswerHead& head, size_t index, std::string_view piece,
                       std::span<const TokenShown> tokens, bool logprobs, size_t offset) {
  Json choice = delta_choice(head, index, {{"content", piece}}, piece);
  if (logprobs) choice["logprobs"] = logprobs_json(head.form, tokens, offset);
  return choice_event(head, choice);
}

std::string call_event(const AnswerHead& head, size_t index, size_t call, const ToolCall& begins) {
  Json one{{"index", call}};
  one.update(call_json(begins));
  return choice_event(head, delta_choice(head, index, {{"tool_calls", Json::array({one})}}, ""));
}

std::string arguments_event(const AnswerHead& head, size_t index, size_t call,
                            std::string_view piece) {
  const Json one{{"index", call}, {"function", {{"arguments", piece}}}};
  return choice_event(head, delta_choice(head, index, {{"tool_calls", Json::array({one})}}, ""));
}

std::string end_event(const AnswerHead& head, size_t index, std::string_view finish) {
  Json choice = delta_choice(head, index, Json::object(), "");
  choice["finish_reason"] = finish;
  return choice_event(head, choice);
}

std::string usage_event(const AnswerHead& head, const Usage& usage, const Json& more) {
  Json json = head_json(head, true);
  json["choices"] = Json::array();
  json["usage"] = usage_json(usage);
  json.update(more);
  return event(json);
}

std::string progress_event(const AnswerHead& head, const Json& progress) {
  Json json = head_json(head, true);
  json["choices"] = Json::array();
  if (head.usage_asked) json["usage"] = nullptr;
  json["prompt_progress"] = progress;
  return event(json);
}

Json usage_json(const Usage& u) {
  return {{"prompt_tokens", u.prompt_tokens},
          {"completion_tokens", u.completion_tokens},
          {"total_tokens", u.prompt_tokens + u.completion_tokens},
          {"prompt_tokens_details", {{"cached_tokens", u.cached_tokens}}}};
}

std::string answer_json(const AnswerHead& head, std::span<const Choice> choices, bool logprobs,
                        const Usage& usage, const Json& more) {
  Json json = head_json(head, false);
  Json list = Json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const Choice& c = choices[i];
    Json choice{{"index", i}};
    if (head.form == Form::kChat)
      choice["message"] = message_json(c);
    else
      choice["text"] = c.text;
    choice["logprobs"] = logprobs ? logprobs_json(head.form, c.tokens, 0) : Json(nullptr);
    choice["finish_reason"] = c.finish;
    if (c.ids) choice["tokens"] = *c.ids;
    list.push_back(choice);
  }
  json["choices"] = list;
  json["usage"] = usage_json(usage);
  json.update(more);
  return dump(json);
}

}  // namespace pith::serve
