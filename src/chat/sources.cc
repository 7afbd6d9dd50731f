#include "chat/sources.h"

#include <fmt/format.h>

#include "core/gguf.h"
#include "core/json_file.h"
#include "pith/error.h"

namespace pith::chat {
namespace {

namespace fs = std::filesystem;

/// "chat_template" of tokenizer_config.json: one template, or a list of those with names.
void read_config_templates(const nlohmann::json& value, const fs::path& file, Sources& out) {
  const auto refuse = [&] {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{}: chat_template is neither a string nor a list of objects with name "
                            "and template",
                            file.string()));
  };
  if (value.is_string()) {
    out.main = value.get<std::string>();
    return;
  }
  if (!value.is_array()) refuse();
  for (const auto& entry : value) {
    const bool whole = entry.is_object() && entry.contains("name") && entry["name"].is_string() &&
                       entry.contains("template") && entry["template"].is_string();
    if (!whole) refuse();
    if (entry["name"] == "default") out.main = entry["template"].get<std::string>();
    if (entry["name"] == "tool_use") out.with_tools = entry["template"].get<std::string>();
  }
}

Sources sources_of_folder(const fs::path& folder) {
  Sources out;
  const fs::path file = folder / "chat_template.jinja";
  const fs::path tools = folder / "additional_chat_templates" / "tool_use.jinja";
  if (is_there(file)) {
    out.name = file.filename().string();
    out.main = read_file(file, kMostTableBytes);
    if (is_there(tools)) out.with_tools = read_file(tools, kMostTableBytes);
    return out;
  }
  const fs::path config = folder / "tokenizer_config.json";
  if (!is_there(config)) return out;
  const nlohmann::json root = read_json_file(config, kMostTableBytes);
  const auto found = root.find("chat_template");
  if (found == root.end() || found->is_null()) return out;
  out.name = config.filename().string();
  read_config_templates(*found, config, out);
  return out;
}

Sources sources_of_gguf(const fs::path& path) {
  const Gguf file = Gguf::open(path);
  Sources out;
  out.name = path.filename().string();
  out.main = std::string(file.text("tokenizer.chat_template").value_or(""));
  out.with_tools = std::string(file.text("tokenizer.chat_template.tool_use").value_or(""));
  return out;
}

}  // namespace

Sources sources_of(const fs::path& model) {
  return fs::is_directory(model) ? sources_of_folder(model) : sources_of_gguf(model);
}

}  // namespace pith::chat
