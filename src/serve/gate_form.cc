// The rules for an answer's form: response_format, tools and which of them may be called.

#include <fmt/format.h>

#include <algorithm>

#include "serve/gate_fields.h"
#include "serve/refusal.h"

namespace pith::serve {
namespace {

void take_schema(Call& call, const Json* schema, const std::string& field) {
  if (schema == nullptr) throw wrong(field, "is missing");
  call.json = true;
  call.schema = dump(*schema);
  call.schema_field = field;
}

void read_format(Call& call, const Json& format) {
  Fields f(format, "response_format");
  const std::string type = f.text("type", 100).value_or("");
  if (type == "text") return;
  if (type == "json_object") {
    call.json = true;
    // llama.cpp's clients put a schema here.
    if (const Json* schema = f.get("schema")) take_schema(call, schema, f.path("schema"));
    return;
  }
  if (type != "json_schema")
    throw unsupported(f.path("type"), fmt::format("is '{}'; types are text, json_object and "
                                                  "json_schema",
                                                  type.substr(0, 100)));
  // Chats have an object here, responses its fields.
  if (const Json* wrapped = f.get("json_schema")) {
    Fields inner(*wrapped, f.path("json_schema"));
    return take_schema(call, inner.get("schema"), inner.path("schema"));
  }
  take_schema(call, f.get("schema"), f.path("schema"));
}

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

constexpr const char* kNoParameters =
    R"({"type":"object","properties":{},"additionalProperties":false})";

FormTool checked_tool(const Json& given, const std::string& path) {
  Fields f(given, path);
  if (const std::string type = f.text("type", 100).value_or("function"); type != "function")
    throw unsupported(f.path("type"), fmt::format("is '{}'; tools are functions", type));
  const Json* function = f.get("function");
  if (function == nullptr) throw wrong(f.path("function"), "is missing");
  Fields inner(*function, f.path("function"));
  FormTool out;
  out.name = inner.text("name", 256).value_or("");
  if (!is_name(out.name))
    throw wrong(inner.path("name"), "must have 1 to 64 letters, digits, '_', '-' and '.'");
  // A function without parameters takes none.
  const Json* parameters = inner.get("parameters");
  out.parameters = parameters == nullptr || parameters->empty() ? kNoParameters : dump(*parameters);
  out.strict = inner.boolean("strict").value_or(false);
  return out;
}

std::string chosen_name(const Json& given, const std::string& path) {
  Fields f(given, path);
  const Json* function = f.get("function");
  if (function == nullptr) throw wrong(f.path("function"), "is missing");
  return Fields(*function, f.path("function")).required_text("name", 256);
}

/// Of tool_choice: the names of the tools that may be called; none = any.
std::vector<std::string> read_choice(Call& call, const Json& choice) {
  if (choice == "auto") return {};
  call.must_call = true;
  if (choice == "required") return {};
  if (!choice.is_object())
    throw wrong("tool_choice",
                "must be \"auto\", \"none\", \"required\", one function or allowed_tools");
  Fields f(choice, "tool_choice");
  const Json* allowed = f.get("allowed_tools");
  if (allowed == nullptr) return {chosen_name(choice, "tool_choice")};
  Fields inner(*allowed, f.path("allowed_tools"));
  const std::string mode = inner.text("mode", 100).value_or("");
  if (mode != "auto" && mode != "required")
    throw wrong(inner.path("mode"), "must be \"auto\" or \"required\"");
  call.must_call = mode == "required";
  const Json* tools = inner.get("tools");
  if (tools == nullptr || !tools->is_array() || tools->empty())
    throw wrong(inner.path("tools"), "must be a list of at least one function");
  std::vector<std::string> out;
  for (size_t i = 0; i < tools->size(); ++i)
    out.push_back(chosen_name((*tools)[i], fmt::format("{}[{}]", inner.path("tools"), i)));
  return out;
}

}  // namespace

void read_form(Fields& f, Call& call) {
  if (const Json* format = f.get("response_format")) read_format(call, *format);
  if (const Json* schema = f.get("json_schema")) take_schema(call, schema, "json_schema");
  if (call.json && call.ignore_eos)
    throw wrong("ignore_eos", "makes no sense for an answer that ends with its JSON document");
}

void read_tools(Fields& f, Call& call) {
  const Json* tools = f.get("tools");
  const Json* choice = f.get("tool_choice");
  call.many_calls = f.boolean("parallel_tool_calls").value_or(true);
  for (const char* name : {"functions", "function_call"})
    if (f.get(name) != nullptr)
      throw unsupported(name, "is not there; it is the older form of tools");
  const bool none = tools == nullptr || (tools->is_array() && tools->empty());
  if (choice != nullptr && *choice == "none") return;
  if (none && choice != nullptr && *choice != "auto") throw wrong("tool_choice", "needs 'tools'");
  if (none) return;
  if (!tools->is_array() || tools->size() > 128)
    throw wrong("tools", "must be a list of at most 128 tools");
  const auto chosen = choice == nullptr ? std::vector<std::string>() : read_choice(call, *choice);
  std::vector<FormTool> all;
  for (size_t i = 0; i < tools->size(); ++i)
    all.push_back(checked_tool((*tools)[i], fmt::format("tools[{}]", i)));
  for (const std::string& name : chosen)
    if (std::ranges::find(all, name, &FormTool::name) == all.end())
      throw wrong("tool_choice", fmt::format("names '{}', which is none of the tools", name));
  for (FormTool& tool : all)
    if (chosen.empty() || std::ranges::find(chosen, tool.name) != chosen.end())
      call.callable.push_back(std::move(tool));
  if (call.json) throw unsupported("response_format", "beside tools is not there");
  if (call.ignore_eos) throw unsupported("ignore_eos", "beside tools is not there");
  if (call.must_call && !call.answer_begins.empty())
    throw wrong("tool_choice", "asks for a call, and the last message has begun the answer");
  call.tools = dump(*tools);
}

}  // namespace pith::serve
