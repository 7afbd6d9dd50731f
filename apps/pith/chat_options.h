#pragma once
// The options of commands that put a chat template around messages.

#include <optional>
#include <string>

#include <CLI/CLI.hpp>

#include "pith/chat.h"
#include "pith/generate.h"
#include "pith/model.h"

namespace pith::cli {

struct ChatOptions {
  std::string chosen;         ///< --chat-template: a built-in name or a file; "" = the model's own
  std::string system;         ///< --system
  bool system_given = false;  ///< an empty text is one too: it empties the template's own
  std::string variables;      ///< --chat-template-kwargs
};

inline std::optional<std::string> system_of(const ChatOptions& o) {
  return o.system_given ? std::optional(o.system) : std::nullopt;
}

/// --json-schema FILE: the answer is a document of it.
void add_form_option(CLI::App& app, std::string& schema_file);
/// Sets the form; nothing where there is no file. Throws as AnswerForm::json_schema.
void set_form(const std::string& schema_file, const Model& model, GenerateOptions& options);

/// --system, --system-file, --chat-template, --chat-template-kwargs.
void add_chat_options(CLI::App& app, ChatOptions& options);

/// The template that the options choose for a model. Throws kNotFound, with what there is to choose
/// from, where it has none of its own and none is named.
ChatTemplate choose_template(const std::string& model_path, const Tokenizer& tokenizer,
                             const ChatOptions& options);

/// Answers end where the template ends them, whatever the model's files call the end of a text.
/// Says so on standard error where the tokenizer has no token for it: then it is the text that ends
/// them, or nothing.
void end_turns(const ChatTemplate& chosen, const ChatTurnEnd& end, GenerateOptions& options);

}  // namespace pith::cli
