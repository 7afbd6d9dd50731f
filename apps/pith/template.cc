// pith template: the prompt that a model's chat template makes of a conversation, with its tokens.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "chat_options.h"
#include "console.h"
#include "conversation.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/tokenizer.h"
#include "real_models.h"
#include "report.h"
#include "text_input.h"
#include "token_pieces.h"

namespace pith::cli {
namespace {

struct TemplateOptions {
  ModelOptions engine;
  ChatOptions chat;
  TextOptions text;
  std::string history, tools;
  bool pieces = false, open = true;
};

Json messages_of(const TemplateOptions& o) {
  Json messages = o.history.empty() ? Json::array() : read_messages(o.history);
  if (o.chat.system_given) {
    if (!messages.empty() && messages[0]["role"] == "system") messages.erase(0);
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", o.chat.system}});
  }
  const bool given = o.text.prompt_option->count() > 0 || !o.text.file.empty();
  if (given || o.history.empty()) {
    std::string text = read_text(o.text);
    if (o.text.prompt_option->count() == 0) drop_last_break(text);
    messages.push_back({{"role", "user"}, {"content", text}});
  }
  return messages;
}

int show(const TemplateOptions& o) {
  end_at_first_interrupt();
  const auto tokenizer = load_tokenizer(o.engine.model);
  const ChatTemplate chosen = choose_template(o.engine.model, *tokenizer, o.chat);
  ChatRequest request;
  request.messages = messages_of(o).dump();
  if (!o.tools.empty()) request.tools = read_all(o.tools);
  request.variables = o.chat.variables;
  request.add_generation_prompt = o.open;
  const std::vector<int32_t> ids = chosen.encode(*tokenizer, request);
  std::string text;
  for (const ChatRun& run : chosen.render(request)) text += run.text;
  if (o.engine.json) {
    print_json({{"template", chosen.name()},
                {"text", text},
                {"count", ids.size()},
                {"ids", ids},
                {"pieces", pieces_of(*tokenizer, ids)}});
  } else if (o.pieces) {
    write_out(pieces_table(*tokenizer, ids));
  } else {
    write_out(fmt::format("{}\n", text));
    write_out(wrapped(fmt::format("{} tokens: {}", ids.size(), fmt::join(ids, ", ")), 2) + "\n");
  }
  return 0;
}

}  // namespace

void add_template(CLI::App& root, Action& action) {
  auto o = std::make_shared<TemplateOptions>();
  CLI::App* app = root.add_subcommand(
      "template", "Show the prompt that a chat template makes of messages, with its tokens");
  add_model_option(*app, o->engine);
  add_chat_options(*app, o->chat);
  add_text_options(*app, o->text, "The last message, of the user");
  app->add_option("--history", o->history, "The messages before: of /save, or a list of messages")
      ->type_name("FILE")
      ->group("Chat");
  app->add_option("--tools", o->tools, "Tools that the template shows to the model, a JSON list")
      ->type_name("FILE")
      ->group("Chat");
  app->add_flag("!--no-generation-prompt", o->open, "Without the beginning of an answer")
      ->group("Chat");
  app->add_flag("--pieces", o->pieces, "A table of ids and the text of each")->group("Output");
  add_json_option(*app, o->engine.json);
  app->footer(
      "Examples:\n"
      "  pith template -m smollm2 -p 'Hello'\n"
      "  pith template -m smollm2 --history talk.json --pieces\n");
  app->callback([o, &action] { action = [o] { return show(*o); }; });
}

}  // namespace pith::cli
