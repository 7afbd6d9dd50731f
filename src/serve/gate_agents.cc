#include "serve/gate_agents.h"

#include <fmt/format.h>

#include "serve/gate.h"
#include "serve/refusal.h"

namespace pith::serve {

void copy_fields(Fields& from, Json& to, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const Json* value = from.get(name)) to[name] = *value;
}

void rename_field(Fields& from, Json& to, const char* theirs, const char* ours) {
  if (const Json* value = from.get(theirs)) to[ours] = *value;
}

void refuse_fields(Fields& f, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const Json* value = f.get(name); value && !(value->is_array() && value->empty()))
      throw unsupported(name, "is not there yet");
}

Json chat_part(const Json& given, const std::string& path) {
  Fields part(given, path);
  const std::string type = part.text("type", 100).value_or("");
  if (type != "text" && type != "input_text" && type != "output_text")
    throw unsupported(part.path("type"), fmt::format("is '{}'; this model reads text alone", type));
  const Json* text = part.get("text");
  return {{"type", "text"}, {"text", text == nullptr ? Json() : *text}};
}

Json chat_content(const Json& content, const std::string& path) {
  if (!content.is_array()) return content;
  Json parts = Json::array();
  for (size_t i = 0; i < content.size(); ++i)
    parts.push_back(chat_part(content[i], fmt::format("{}[{}]", path, i)));
  return parts;
}

Json chat_tool(Fields& f, const char* parameters) {
  Json function{{"name", f.required_text("name", 256)}};
  copy_fields(f, function, {"description"});
  rename_field(f, function, parameters, "parameters");
  copy_fields(f, function, {"strict"});
  return {{"type", "function"}, {"function", function}};
}

Json chat_tool_call(const std::string& id, const std::string& name, const Json& arguments) {
  return {
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

Json chat_tool_choice(Fields& f) {
  return {{"type", "function"}, {"function", {{"name", f.required_text("name", 256)}}}};
}

void add_call(Json& messages, const Json& call) {
  if (messages.empty() || messages.back()["role"] != "assistant")
    messages.push_back({{"role", "assistant"}, {"content", nullptr}});
  messages.back()["tool_calls"].push_back(call);
}

Call infill_call(const Json& body, const GateOptions& options) {
  Fields f(body);
  constexpr size_t kMost = size_t{8} << 20;
  Json text;
  text["prompt"] =
      f.text("input_prefix", kMost).value_or("") + f.text("prompt", kMost).value_or("");
  text["suffix"] = f.text("input_suffix", kMost).value_or("");
  refuse_fields(f, {"input_extra"});
  copy_fields(f, text,
              {"model", "stream", "n_predict", "max_tokens", "temperature", "top_k", "top_p",
               "min_p", "seed", "stop", "repeat_penalty", "id_slot", "cache_prompt", "pith"});
  return text_call(text, options);
}

}  // namespace pith::serve
