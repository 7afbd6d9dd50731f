// Requests of Anthropic's messages, said as chat completions: one gate checks all values.

#include <fmt/format.h>

#include "serve/gate.h"
#include "serve/gate_agents.h"
#include "serve/refusal.h"

namespace pith::serve {
namespace {

/// The words of a result; chats have no mark for one that failed, but models read it.
Json result_content(Fields& block) {
  const Json* content = block.get("content");
  Json out = content == nullptr ? Json("") : chat_content(*content, block.path("content"));
  if (!block.boolean("is_error").value_or(false)) return out;
  if (out.is_string()) return "Error: " + out.get<std::string>();
  if (out.is_array()) out.insert(out.begin(), Json{{"type", "text"}, {"text", "Error: "}});
  return out;
}

/// Words, calls and results of one message are messages of their own in chats, in the same order.
void add_blocks(Json& messages, const std::string& role, const Json& blocks,
                const std::string& path) {
  const size_t first = messages.size();
  if (blocks.empty()) messages.push_back({{"role", role}, {"content", ""}});
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", path, i);
    Fields block(blocks[i], at);
    const std::string type = block.text("type", 100).value_or("");
    // Another model's thoughts, which agents send back, are not this one's.
    if (role == "assistant" && (type == "thinking" || type == "redacted_thinking")) continue;
    if (type == "tool_use" && role == "assistant") {
      const Json* input = block.get("input");
      if (input == nullptr || !input->is_object())
        throw wrong(block.path("input"), "must be an object");
      const Json call = chat_tool_call(block.text("id", 256).value_or(""),
                                       block.required_text("name", 256), *input);
      if (messages.size() == first) messages.push_back({{"role", role}, {"content", nullptr}});
      add_call(messages, call);
    } else if (type == "tool_result" && role == "user") {
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", block.required_text("tool_use_id", 256)},
                          {"content", result_content(block)}});
    } else {
      const Json part = chat_part(blocks[i], at);
      const bool goes_on = messages.size() > first && messages.back()["role"] == role &&
                           !messages.back().contains("tool_calls");
      if (!goes_on) messages.push_back({{"role", role}, {"content", Json::array()}});
      messages.back()["content"].push_back(part);
    }
  }
}

void add_message(Json& messages, const Json& given, const std::string& path) {
  Fields f(given, path);
  const std::string role = f.text("role", 100).value_or("");
  const Json* content = f.get("content");
  if (content != nullptr && content->is_array())
    return add_blocks(messages, role, *content, f.path("content"));
  messages.push_back({{"role", role}, {"content", content == nullptr ? Json() : *content}});
}

void read_tools(Fields& f, Json& chat) {
  if (const Json* tools = f.get("tools")) {
    if (!tools->is_array()) throw wrong("tools", "must be a list of tools");
    chat["tools"] = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      Fields tool((*tools)[i], fmt::format("tools[{}]", i));
      if (const std::string type = tool.text("type", 100).value_or("custom"); type != "custom")
        throw unsupported(tool.path("type"),
                          fmt::format("is '{}'; tools are the client's own (custom)", type));
      chat["tools"].push_back(chat_tool(tool, "input_schema"));
    }
  }
  const Json* choice = f.get("tool_choice");
  if (choice == nullptr) return;
  Fields one(*choice, "tool_choice");
  const std::string type = one.text("type", 100).value_or("");
  if (type == "tool")
    chat["tool_choice"] = chat_tool_choice(one);
  else if (type == "any")
    chat["tool_choice"] = "required";
  else if (type == "auto" || type == "none")
    chat["tool_choice"] = type;
  else
    throw wrong(one.path("type"), "must be auto, any, tool or none");
  if (one.boolean("disable_parallel_tool_use").value_or(false)) chat["parallel_tool_calls"] = false;
}

}  // namespace

Call messages_call(const Json& body, const GateOptions& options, bool to_answer) {
  Fields f(body);
  Json messages = Json::array(), chat;
  if (const Json* system = f.get("system"))
    messages.push_back({{"role", "system"}, {"content", chat_content(*system, "system")}});
  const Json* list = f.get("messages");
  if (list == nullptr || !list->is_array() || list->empty())
    throw wrong("messages", "must be a list of at least one message");
  for (size_t i = 0; i < list->size(); ++i)
    add_message(messages, (*list)[i], fmt::format("messages[{}]", i));
  refuse_fields(f, {"mcp_servers", "container"});
  chat["messages"] = messages;
  read_tools(f, chat);
  copy_fields(f, chat, {"model", "stream", "temperature", "top_p", "top_k", "pith"});
  if (!to_answer) return chat_call(chat, options);
  rename_field(f, chat, "stop_sequences", "stop");
  copy_fields(f, chat, {"max_tokens"});
  if (!chat.contains("max_tokens")) throw wrong("max_tokens", "is missing");
  return chat_call(chat, options);
}

}  // namespace pith::serve
