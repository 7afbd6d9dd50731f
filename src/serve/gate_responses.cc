// Requests of OpenAI's responses, said as chat completions: one gate checks all values.

#include <fmt/format.h>

#include "serve/gate.h"
#include "serve/gate_agents.h"
#include "serve/refusal.h"

namespace pith::serve {
namespace {

constexpr size_t kMost = size_t{8} << 20;

void add_item(Json& messages, const Json& given, const std::string& path) {
  Fields f(given, path);
  const std::string type = f.text("type", 100).value_or("message");
  if (type == "function_call") {
    const std::string id = f.text("call_id", 256).value_or("");
    const std::string name = f.required_text("name", 256);
    return add_call(messages, chat_tool_call(id, name, f.required_text("arguments", kMost)));
  }
  // Another model's thoughts, which agents send back, are not this one's.
  if (type == "reasoning") return;
  const bool result = type == "function_call_output";
  if (!result && type != "message")
    throw unsupported(f.path("type"), fmt::format("is '{}'; items are message, function_call and "
                                                  "function_call_output",
                                                  type));
  const char* field = result ? "output" : "content";
  const Json* content = f.get(field);
  if (result && content == nullptr) throw wrong(f.path(field), "is missing");
  Json message{{"role", result ? "tool" : f.text("role", 100).value_or("")}};
  if (result) message["tool_call_id"] = f.required_text("call_id", 256);
  message["content"] = content == nullptr ? Json() : chat_content(*content, f.path(field));
  messages.push_back(message);
}

Json input_messages(Fields& f) {
  Json messages = Json::array();
  if (const Json* instructions = f.get("instructions"))
    messages.push_back({{"role", "system"}, {"content", *instructions}});
  const Json* input = f.get("input");
  if (input != nullptr && input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
    return messages;
  }
  if (input == nullptr || !input->is_array() || input->empty())
    throw wrong("input", "must be a string or a list of at least one item");
  for (size_t i = 0; i < input->size(); ++i)
    add_item(messages, (*input)[i], fmt::format("input[{}]", i));
  if (messages.empty()) throw wrong("input", "has nothing to answer");
  return messages;
}

void read_tools(Fields& f, Json& chat) {
  if (const Json* tools = f.get("tools")) {
    if (!tools->is_array()) throw wrong("tools", "must be a list of functions");
    chat["tools"] = Json::array();
    for (size_t i = 0; i < tools->size(); ++i) {
      Fields tool((*tools)[i], fmt::format("tools[{}]", i));
      if (const std::string type = tool.text("type", 100).value_or(""); type != "function")
        throw unsupported(tool.path("type"), fmt::format("is '{}'; tools are functions", type));
      chat["tools"].push_back(chat_tool(tool, "parameters"));
    }
  }
  const Json* choice = f.get("tool_choice");
  if (choice == nullptr || !choice->is_object()) return copy_fields(f, chat, {"tool_choice"});
  Fields one(*choice, "tool_choice");
  if (const std::string type = one.text("type", 100).value_or(""); type != "function")
    throw unsupported(one.path("type"), fmt::format("is '{}'; tools are functions", type));
  chat["tool_choice"] = chat_tool_choice(one);
}

}  // namespace

Call responses_call(const Json& body, const GateOptions& options) {
  Fields f(body);
  Json chat;
  chat["messages"] = input_messages(f);
  refuse_fields(f, {"previous_response_id", "conversation", "background", "prompt"});
  read_tools(f, chat);
  if (const Json* text = f.get("text")) {
    Fields inner(*text, "text");
    rename_field(inner, chat, "format", "response_format");
  }
  if (const Json* reasoning = f.get("reasoning")) {
    Fields inner(*reasoning, "reasoning");
    rename_field(inner, chat, "effort", "reasoning_effort");
  }
  copy_fields(f, chat,
              {"model", "stream", "temperature", "top_p", "top_k", "min_p", "seed", "pith",
               "prompt_cache_key", "priority", "parallel_tool_calls"});
  rename_field(f, chat, "max_output_tokens", "max_tokens");
  return chat_call(chat, options);
}

Json responses_echo(const Json& body) {
  Json out{{"instructions", nullptr},
           {"parallel_tool_calls", true},
           {"tool_choice", "auto"},
           {"tools", Json::array()},
           {"text", {{"format", {{"type", "text"}}}}},
           {"metadata", Json::object()}};
  for (auto& [name, value] : out.items())
    if (const auto given = body.find(name); given != body.end() && !given->is_null())
      value = *given;
  return out;
}

}  // namespace pith::serve
