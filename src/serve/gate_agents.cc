// Requests of OpenAI's responses and Anthropic's messages, said as chat completions: one gate
// checks all values.

#include <fmt/format.h>

#include "serve/gate.h"
#include "serve/gate_fields.h"
#include "serve/refusal.h"

namespace pith::serve {
namespace {

/// Fields that keep their name.
void copy(Fields& from, Json& to, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const Json* value = from.get(name)) to[name] = *value;
}

/// Fields that get another one.
void rename(Fields& from, Json& to, const char* theirs, const char* ours) {
  if (const Json* value = from.get(theirs)) to[ours] = *value;
}

void refuse(Fields& f, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const Json* value = f.get(name); value && !(value->is_array() && value->empty()))
      throw unsupported(name, "is not there yet");
}

/// Parts of other names become those that chats have.
Json chat_content(const Json& content, const std::string& path) {
  if (!content.is_array()) return content;
  Json parts = Json::array();
  for (size_t i = 0; i < content.size(); ++i) {
    Fields part(content[i], fmt::format("{}[{}]", path, i));
    const std::string type = part.text("type", 100).value_or("");
    if (type != "text" && type != "input_text" && type != "output_text")
      throw unsupported(part.path("type"),
                        fmt::format("is '{}'; this model reads text alone", type));
    const Json* text = part.get("text");
    parts.push_back({{"type", "text"}, {"text", text == nullptr ? Json() : *text}});
  }
  return parts;
}

void add_message(Json& messages, const Json& given, const std::string& path) {
  Fields f(given, path);
  const std::string type = f.text("type", 100).value_or("message");
  if (type != "message") throw unsupported(f.path("type"), fmt::format("is '{}'", type));
  Json message{{"role", f.text("role", 100).value_or("")}};
  const Json* content = f.get("content");
  message["content"] = content == nullptr ? Json() : chat_content(*content, f.path("content"));
  messages.push_back(message);
}

void add_messages(Json& messages, const Json* list, const char* name) {
  if (list == nullptr || !list->is_array() || list->empty())
    throw wrong(name, "must be a list of at least one message");
  for (size_t i = 0; i < list->size(); ++i)
    add_message(messages, (*list)[i], fmt::format("{}[{}]", name, i));
}

}  // namespace

Call responses_call(const Json& body, const GateOptions& options) {
  Fields f(body);
  Json messages = Json::array(), chat;
  if (const Json* instructions = f.get("instructions"))
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  const Json* input = f.get("input");
  if (input != nullptr && input->is_string())
    messages.push_back({{"role", "user"}, {"content", *input}});
  else
    add_messages(messages, input, "input");
  refuse(f, {"previous_response_id", "conversation", "tools", "background", "prompt"});
  if (const Json* text = f.get("text")) {
    Fields inner(*text, "text");
    rename(inner, chat, "format", "response_format");
  }
  if (const Json* reasoning = f.get("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    rename(inner, chat, "effort", "reasoning_effort");
  }
  chat["messages"] = messages;
  copy(f, chat,
       {"model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "pith",
        "prompt_cache_key", "priority"});
  rename(f, chat, "max_output_tokens", "max_tokens");
  return chat_call(chat, options);
}

Call messages_call(const Json& body, const GateOptions& options, bool to_answer) {
  Fields f(body);
  Json messages = Json::array(), chat;
  if (const Json* system = f.get("system"))
    messages.push_back({{"role", "system"}, {"content", chat_content(*system, "system")}});
  add_messages(messages, f.get("messages"), "messages");
  refuse(f, {"tools", "mcp_servers", "container"});
  chat["messages"] = messages;
  copy(f, chat, {"model", "stream", "temperature", "top_p", "top_k", "pith"});
  if (!to_answer) return chat_call(chat, options);
  rename(f, chat, "stop_sequences", "stop");
  rename(f, chat, "max_tokens", "max_tokens");
  if (!chat.contains("max_tokens")) throw wrong("max_tokens", "is missing");
  return chat_call(chat, options);
}

Call infill_call(const Json& body, const GateOptions& options) {
  Fields f(body);
  constexpr size_t kMost = size_t{8} << 20;
  Json text;
  text["prompt"] =
      f.text("input_prefix", kMost).value_or("") + f.text("prompt", kMost).value_or("");
  text["suffix"] = f.text("input_suffix", kMost).value_or("");
  refuse(f, {"input_extra"});
  copy(f, text,
       {"model", "stream", "n_predict", "max_tokens", "temperature", "top_k", "top_p", "min_p",
        "seed", "stop", "repeat_penalty", "id_slot", "cache_prompt", "pith"});
  return text_call(text, options);
}

}  // namespace pith::serve
