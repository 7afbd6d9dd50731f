// Chat completions: messages, and what templates are told.

#include <fmt/format.h>

#include <algorithm>

#include "serve/gate_fields.h"
#include "serve/refusal.h"

namespace pith::serve {
namespace {

constexpr size_t kMostMessages = 4096;

/// A string; parts are joined, since templates of text models know strings.
std::string content_text(const Json& content, const std::string& path) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) throw wrong(path, "must be a string or a list of parts");
  std::string out;
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = part.text("type", 100).value_or("");
    if (type != "text")
      throw unsupported(part.path("type"),
                        fmt::format("is '{}'; this model reads text alone", type));
    out += part.required_text("text", SIZE_MAX);
  }
  return out;
}

/// Templates know arguments as an object; clients send its text.
Json checked_call(const Json& given, const std::string& path) {
  Fields f(given, path);
  const Json* function = f.get("function");
  if (function == nullptr) throw wrong(f.path("function"), "is missing");
  Fields inner(*function, f.path("function"));
  const std::string name = inner.required_text("name", 256);
  Json arguments = Json::object();
  if (const Json* told = inner.get("arguments"); told != nullptr && told->is_string()) {
    // Clients send "" for a call without arguments; what is not JSON is of an answer that was cut.
    const auto& text = told->get_ref<const std::string&>();
    if (text.find_first_not_of(" \t\r\n") != text.npos)
      arguments = parse_text(text, inner.path("arguments")).value_or(*told);
  } else if (told != nullptr) {
    arguments = *told;
  }
  return {{"id", f.text("id", 256).value_or("")},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", arguments}}}};
}

Json checked_message(const Json& given, const std::string& path) {
  Fields f(given, path);
  const std::string role = f.required_text("role", 100);
  static constexpr const char* kRoles[] = {"system", "developer", "user", "assistant", "tool"};
  if (std::none_of(std::begin(kRoles), std::end(kRoles), [&](const char* r) { return role == r; }))
    throw wrong(f.path("role"), fmt::format("is '{}'; roles are system, developer, user, assistant "
                                            "and tool",
                                            role));
  Json out;
  out["role"] = role == "developer" ? "system" : role;
  const Json* content = f.get("content");
  const Json* calls = f.get("tool_calls");
  if (content == nullptr && calls == nullptr && role != "assistant")
    throw wrong(f.path("content"), "is missing");
  out["content"] = content == nullptr ? "" : content_text(*content, f.path("content"));
  if (calls != nullptr && !calls->empty()) {
    if (!calls->is_array() || calls->size() > 128)
      throw wrong(f.path("tool_calls"), "must be a list of at most 128 calls");
    out["tool_calls"] = Json::array();
    for (size_t i = 0; i < calls->size(); ++i)
      out["tool_calls"].push_back(
          checked_call((*calls)[i], fmt::format("{}[{}]", f.path("tool_calls"), i)));
  }
  for (const char* name : {"name", "tool_call_id", "reasoning_content"})
    if (const auto text = f.text(name, size_t{8} << 20)) out[name] = *text;
  if (f.get("audio") != nullptr || f.get("function_call") != nullptr)
    throw unsupported(path, "has audio or a function_call; tool_calls are the newer form");
  return out;
}

/// Bytes of a text without the space around it.
size_t trimmed_bytes(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n\v\f";
  const size_t begin = text.find_first_not_of(kSpace);
  return begin == text.npos ? 0 : text.find_last_not_of(kSpace) + 1 - begin;
}

void read_messages(Fields& f, Call& call) {
  const Json* list = f.get("messages");
  if (list == nullptr || !list->is_array() || list->empty())
    throw wrong("messages", "must be a list of at least one message");
  if (list->size() > kMostMessages)
    throw wrong("messages", fmt::format("has more than {} messages", kMostMessages));
  std::string last;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json message = checked_message((*list)[i], fmt::format("messages[{}]", i));
    const auto& role = message["role"].get_ref<const std::string&>();
    if (i + 1 == list->size() && role == "assistant" && !message.contains("tool_calls")) {
      if (last == "assistant") throw wrong("messages", "ends with two messages of the assistant's");
      call.answer_begins = message["content"].get<std::string>();
      break;
    }
    call.opens_turn.push_back(role == "user");
    if (role == "user")
      call.user_bytes += trimmed_bytes(message["content"].get_ref<const std::string&>());
    call.messages.push_back(dump_wide(message));
    last = role;
  }
  if (call.messages.empty()) throw wrong("messages", "has nothing to answer");
}

void read_variables(Fields& f, Call& call) {
  Json variables = Json::object();
  if (const auto effort = f.text("reasoning_effort", 32)) variables["reasoning_effort"] = *effort;
  if (const Json* given = f.get("chat_template_kwargs")) {
    Fields inner(*given, "chat_template_kwargs");
    // Templates read any name: only harmless ones come from requests.
    if (const auto think = inner.boolean("enable_thinking")) variables["enable_thinking"] = *think;
    if (const auto effort = inner.text("reasoning_effort", 32))
      variables["reasoning_effort"] = *effort;
    for (const std::string& name : inner.unknown())
      throw unsupported(inner.path(name),
                        "may not be set; enable_thinking and reasoning_effort may");
  }
  if (!variables.empty()) call.variables = dump(variables);
}

}  // namespace

Call chat_call(const Json& body, const GateOptions& options) {
  Call call;
  Fields f(body);
  read_common(f, call, options);
  read_messages(f, call);
  read_variables(f, call);
  read_tools(f, call);
  const bool logprobs = f.boolean("logprobs").value_or(false);
  const auto top = f.integer("top_logprobs", 0, 20);
  if (top && *top > 0 && !logprobs) throw wrong("top_logprobs", "needs \"logprobs\": true");
  if (logprobs) call.logprobs = static_cast<int>(top.value_or(0));
  if (const Json* modalities = f.get("modalities"); modalities && *modalities != Json{"text"})
    throw unsupported("modalities", "other than [\"text\"] are not there");
  for (const char* name : {"audio", "prediction", "web_search_options"})
    if (f.get(name) != nullptr) throw unsupported(name, "is not there");
  refuse_unknown(f, options);
  return call;
}

Call template_call(const Json& body, const GateOptions&) {
  Call call;
  Fields f(body);
  read_messages(f, call);
  read_variables(f, call);
  read_tools(f, call);
  return call;
}

}  // namespace pith::serve
