#pragma once
// Where models keep their chat templates.

#include <filesystem>
#include <string>

namespace pith::chat {

struct Sources {
  std::string main, with_tools;  ///< empty: there is none
  std::string name;              ///< of the file, for messages
};

/// Of a folder: chat_template.jinja, else chat_template of tokenizer_config.json (a string, or a
/// list of templates with names, of which `default` and `tool_use` count). Of a GGUF file:
/// tokenizer.chat_template and tokenizer.chat_template.tool_use. Throws kCorrupt.
Sources sources_of(const std::filesystem::path& model);

}  // namespace pith::chat
