#include "chat_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "console.h"
#include "conversation.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "text_input.h"

namespace pith::cli {

void add_chat_options(CLI::App& app, ChatOptions& o) {
  constexpr const char* kGroup = "Chat";
  app.add_option_function<std::string>(
         "--system,--system-prompt",
         [&o](const std::string& text) { o.system = text, o.system_given = true; },
         "The system prompt; '' = none, not even the template's own")
      ->type_name("TEXT")
      ->group(kGroup);
  app.add_option_function<std::string>(
         "--system-file,--system-prompt-file",
         [&o](const std::string& file) {
           o.system = read_all(file), o.system_given = true;
           require_utf8(o.system, file);
           drop_last_break(o.system);
         },
         "The system prompt, from a file")
      ->excludes("--system")
      ->type_name("FILE")
      ->group(kGroup);
  app.add_option("--chat-template,--chat-template-file", o.chosen,
                 fmt::format("Instead of the model's own template: a file with one, or {}",
                             fmt::join(ChatTemplate::built_in_names(), ", ")))
      ->type_name("NAME|FILE")
      ->group(kGroup);
  app.add_option("--chat-template-kwargs", o.variables,
                 "More variables for the template, as JSON: '{\"enable_thinking\": false}'")
      ->type_name("JSON")
      ->group(kGroup);
}

void add_form_option(CLI::App& app, std::string& schema_file) {
  app.add_option("--json-schema,--json-schema-file", schema_file,
                 "A JSON schema that the answer follows (keywords: docs/serving.md)")
      ->type_name("FILE")
      ->check(CLI::ExistingFile)
      ->group("Output");
}

void set_form(const std::string& schema_file, const Model& model, GenerateOptions& options) {
  if (schema_file.empty()) return;
  options.form = AnswerForm::json_schema(read_all(schema_file),
                                         std::make_shared<const FormVocabulary>(model.tokenizer()));
}

ChatTemplate choose_template(const std::string& model_path, const Tokenizer& tokenizer,
                             const ChatOptions& o) {
  const auto names = ChatTemplate::built_in_names();
  if (std::find(names.begin(), names.end(), o.chosen) != names.end())
    return ChatTemplate::built_in(o.chosen, tokenizer);
  if (!o.chosen.empty()) {
    if (std::filesystem::exists(o.chosen))
      return ChatTemplate(read_all(o.chosen), o.chosen, tokenizer);
    throw Error(ErrorCode::kNotFound,
                fmt::format("--chat-template {}: no built-in template has this name, and there is "
                            "no such file; built-in are {}",
                            o.chosen, fmt::join(names, ", ")));
  }
  try {
    return ChatTemplate::of(model_path, tokenizer);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    throw Error(
        error.code(),
        fmt::format("{}: choose with --chat-template NAME, or give a file; 'pith run -m MODEL "
                    "-p TEXT' continues a text without one",
                    error.what()));
  }
}

void end_turns(const ChatTemplate& chosen, const ChatTurnEnd& end, GenerateOptions& options) {
  options.ends.insert(options.ends.end(), end.tokens.begin(), end.tokens.end());
  if (!end.text.empty()) options.stop.push_back(end.text);
  if (!end.tokens.empty()) return;
  say(fmt::format(
      "pith: warning: the model's tokenizer has no token for what ends an answer in the template "
      "{}{}; answers may not end where they should",
      chosen.name(), end.text.empty() ? "" : fmt::format(" ('{}')", end.text)));
}

}  // namespace pith::cli
