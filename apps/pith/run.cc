// pith run: completes a prompt, or holds a conversation with -i.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "args.h"
#include "chat_options.h"
#include "commands.h"
#include "console.h"
#include "conversation.h"
#include "core/output_file.h"
#include "engine.h"
#include "interactive.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith/saved.h"
#include "pith/tokenizer.h"
#include "pith_tools/choose.h"
#include "pith_tools/dialogue.h"
#include "prompt_cache.h"
#include "report.h"
#include "text_input.h"

namespace pith::cli {
namespace {

struct RunOptions {
  ModelOptions engine;
  TextOptions text;
  SamplingOptions sampling;
  int64_t predict = -1;
  std::string load, save, cache;  // files of a session; "" = none
  bool overwrite = false;
  std::vector<std::string> stop;
  std::string schema;              // a file; "" = free text
  std::vector<std::string> words;  // of a message, as ollama's run takes it
  ChatOptions chat_options;
  bool ignore_eos = false, interactive = false, hide_prompt = false, quiet = false, chat = false;
  int bos = -1;
};

GenerateOptions generate_options(const RunOptions& o) {
  GenerateOptions g;
  g.sampling = o.sampling;
  g.max_tokens = o.predict;
  for (const std::string& stop : o.stop) {
    g.stop.push_back(o.text.no_escape ? stop : unescape(stop));
    require_utf8(g.stop.back(), "a stop string");
  }
  g.ignore_eos = o.ignore_eos;
  g.cancel = &interrupted();
  return g;
}

/// Said before a long answer is made that could not be saved.
void check_save(const RunOptions& o) {
  if (!o.overwrite && std::filesystem::exists(std::filesystem::symlink_status(o.save)))
    throw Error(ErrorCode::kIo,
                o.save + " is there already; name another file, or add --session-overwrite");
  check_output(o.save);
}

// The prompt of -p, -f or standard input; empty only in interactive mode.
std::string prompt_of(const RunOptions& o) {
  const bool given = o.text.prompt_option->count() > 0 || !o.text.file.empty();
  if (!o.words.empty()) {
    if (given || o.interactive)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("'{}' is a message beside the options: give it with -p, or leave out "
                              "-p, -f and -i",
                              o.words[0]));
    std::string text = fmt::format("{}", fmt::join(o.words, " "));
    require_utf8(text, "the message");
    if (text.empty()) throw Error(ErrorCode::kInvalidArgument, "the message is empty");
    return text;
  }
  if (o.interactive && o.text.file == "-") {
    throw Error(ErrorCode::kInvalidArgument,
                "-i reads lines from standard input, so -f - cannot read the prompt from it too");
  }
  if (o.interactive && !given) return {};
  if (!has_text(o.text)) {
    throw Error(ErrorCode::kInvalidArgument,
                "there is no prompt: give one with -p TEXT or -f FILE, pipe it in, or use -i");
  }
  std::string prompt = read_text(o.text);
  // echo and editors end a text with a line break that nobody means.
  if (o.text.prompt_option->count() == 0) drop_last_break(prompt);
  if (prompt.empty() && (o.load.empty() || o.chat)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the prompt is empty: at least one character is needed to continue from");
  }
  return prompt;
}

/// Tokens of one message in its template.
size_t message_tokens(const Model& model, const ChatTemplate& chosen, const RunOptions& o,
                      const std::string& text, size_t context) {
  require_may_fit(model.tokenizer(), text.size(), context);
  Json messages = Json::array();
  if (o.chat_options.system_given)
    messages.push_back({{"role", "system"}, {"content", o.chat_options.system}});
  messages.push_back({{"role", "user"}, {"content", text}});
  ChatRequest request;
  request.messages = messages.dump();
  request.variables = o.chat_options.variables;
  return chosen.encode(model.tokenizer(), request, context).size();
}

/// Shows a prompt once it is accepted, an answer, and the progress towards it.
class Shown {
 public:
  explicit Shown(const RunOptions& o, std::string prompt = "")
      : json_(o.engine.json),
        prompt_(std::move(prompt)),
        bar_("reading the prompt", "tokens", o.engine.json || o.quiet) {}
  std::function<void(std::string_view)> text() {
    return [this](std::string_view piece) {
      show_prompt();
      if (!json_) write_out(piece);
    };
  }
  /// The bar must be gone before the first word of the answer.
  Progress progress() {
    return [this](size_t done, size_t total) {
      show_prompt();
      const bool go_on = bar_.update(done, total);
      if (done >= total) bar_.finish();
      return go_on;
    };
  }
  void finish() {
    show_prompt();
    bar_.finish();
  }

 private:
  void show_prompt() { write_out(std::exchange(prompt_, "")); }

  bool json_;
  std::string prompt_;
  ProgressBar bar_;
};

int tell(const GenerateResult& result, const Session& session, const RunOptions& o) {
  const RunStatistics statistics{result, session, o.sampling.seed};
  if (o.engine.json) {
    Json json{{"text", result.text}, {"tokens", result.tokens}};
    json.update(to_json(statistics));
    print_json(json);
  } else {
    write_out("\n");
    if (!o.quiet) fmt::print(stderr, "\n{}", to_text(statistics));
  }
  if (result.reason == StopReason::kAttentionError) return kExitAttentionError;
  return result.reason == StopReason::kCancelled ? kExitInterrupted : 0;
}

int complete(const std::shared_ptr<const Model>& model, StandaloneOptions options,
             const RunOptions& o, const std::string& text) {
  // A prompt that continues a session is not the beginning of a text.
  const int bos = o.load.empty() ? o.bos : std::max(o.bos, 0);
  if (options.context == 0) options.context = static_cast<size_t>(model->config().context);
  require_may_fit(model->tokenizer(), text.size(), options.context);
  const std::vector<int32_t> ids =
      text.empty() ? std::vector<int32_t>() : encode_prompt(*model, text, bos);
  options.percent_of = read_in_all(ids.size(), o.predict, options.context);
  GenerateOptions generation = generate_options(o);
  set_form(o.schema, *model, generation);
  if (!o.load.empty()) take_percent_of(options, read_saved(o.load));
  Shown shown(o, o.hide_prompt || o.engine.json ? "" : text);
  CachedPrompt begun =
      o.cache.empty()
          ? CachedPrompt{o.load.empty() ? Session(model, options)
                                        : Session::restore(model, o.load, options),
                         {}}
          : read_with_cache(model, options, o.cache, ids, generation.cancel, shown.progress());
  Session& session = begun.session;
  GenerateResult result = begun.read;
  if (result.reason != StopReason::kCancelled) {
    const std::span<const int32_t> rest(ids.data(), o.cache.empty() ? ids.size() : 0);
    result = generate(session, rest, generation, shown.text(), shown.progress());
  }
  if (!o.cache.empty()) {
    result.prompt_tokens = begun.read.prompt_tokens;
    result.prompt_seconds = begun.read.prompt_seconds;
  }
  shown.finish();
  if (!o.save.empty()) session.save(o.save, {.replace = o.overwrite});
  return tell(result, session, o);
}

/// One message of a talk that may have begun in another process.
int answer_message(const std::shared_ptr<const Model>& model, StandaloneOptions options,
                   const RunOptions& o, const std::string& text) {
  ChatTemplate chosen = choose_template(o.engine.model, model->tokenizer(), o.chat_options);
  if (options.context == 0) options.context = static_cast<size_t>(model->config().context);
  if (o.load.empty())
    options.percent_of = read_in_all(message_tokens(*model, chosen, o, text, options.context),
                                     o.predict, options.context);
  DialogueSetup setup{system_of(o.chat_options), o.chat_options.variables, "", generate_options(o)};
  end_turns(chosen, chosen.turn_end(model->tokenizer()), setup.generate);
  set_form(o.schema, *model, setup.generate);
  Dialogue dialogue(model, options, std::move(chosen), std::move(setup));
  if (!o.load.empty()) dialogue.resume(o.load);
  Shown shown(o);
  const Dialogue::Answer answer = dialogue.answer(text, shown.text(), shown.progress());
  shown.finish();
  if (!o.save.empty()) dialogue.save(o.save, o.overwrite);
  return tell(answer.result, dialogue.session(), o);
}

void check(const RunOptions& o) {
  if (o.interactive && o.engine.json) {
    throw Error(ErrorCode::kInvalidArgument,
                "--json prints one answer as one object and cannot go with -i");
  }
  if (o.interactive && !o.schema.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--json-schema is of one answer, and cannot go with -i");
  if (o.interactive && !(o.load.empty() && o.save.empty()))
    throw Error(ErrorCode::kInvalidArgument,
                "--session-load and --session-save go with one prompt, not with -i");
  if (!o.cache.empty() && (o.interactive || o.chat || !o.load.empty()))
    throw Error(ErrorCode::kInvalidArgument,
                "--prompt-cache is of a text that is completed: not with -i, --chat or "
                "--session-load; a chat is kept by --session-save");
  if (!o.save.empty()) check_save(o);
  if (o.interactive && o.chat)
    throw Error(ErrorCode::kInvalidArgument, "--chat is one message; use 'pith chat' for more");
  if (o.chat && o.bos >= 0)
    throw Error(ErrorCode::kInvalidArgument,
                "--bos and --no-bos have no effect with --chat: the template writes the beginning");
  if (!o.chat && !(!o.chat_options.system_given && o.chat_options.chosen.empty() &&
                   o.chat_options.variables.empty()))
    throw Error(ErrorCode::kInvalidArgument,
                "--system, --chat-template and --chat-template-kwargs need --chat: without it the "
                "prompt is read as it is");
  if (o.chat && o.chat_options.system_given && !o.load.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "--system with --session-load: the chat has its system prompt already");
}

/// Texts behind a model's name are messages, as in ollama; a base model goes on with them.
bool answers_messages(const RunOptions& o, const Model& model) {
  if (o.words.empty()) return o.chat;
  try {
    choose_template(o.engine.model, model.tokenizer(), o.chat_options);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound || !o.chat_options.chosen.empty() ||
        o.chat_options.system_given)
      throw;
    say("pith: the model has no chat template: it continues the text as it is");
    return false;
  }
}

int run(RunOptions& o) {
  if (!o.words.empty()) o.chat = true;
  check(o);
  const std::string prompt = prompt_of(o);
  const auto generate = generate_options(o);
  const Sampler checked(generate.sampling);  // a wrong option is said before the model is loaded
  const StandaloneOptions options = session_options(o.engine);
  const auto model = load_model(o.engine);
  if (answers_messages(o, *model)) return answer_message(model, options, o, prompt);
  if (!o.interactive) return complete(model, options, o, prompt);
  return run_interactive(Session(model, options), {generate, prompt, o.bos, !o.hide_prompt});
}

void add_session_options(CLI::App& app, RunOptions& o) {
  app.add_option("--session-load", o.load,
                 "Continue from a saved session: the prompt comes after what it has read; model, "
                 "policy and all else must be those it was saved under")
      ->type_name("FILE")
      ->group("Session");
  app.add_option("--session-save", o.save,
                 "Save the session after the answer, for --session-load; the file holds the "
                 "conversation and is for you alone (mode 0600)")
      ->type_name("FILE")
      ->group("Session");
  app.add_option("--prompt-cache", o.cache,
                 "Keep in this file what the prompt leaves in the cache: the same prompt, or a "
                 "longer one, is then not read again")
      ->check(not_empty())
      ->type_name("FILE")
      ->group("Session");
  app.add_flag("--session-overwrite", o.overwrite, "Replace the file of --session-save")
      ->group("Session");
}

void add_output_options(CLI::App& app, RunOptions& o) {
  app.add_option("-n,--predict,--n-predict", o.predict,
                 "Most tokens to generate; -1 = until the text or the context ends")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40))
      ->type_name("N")
      ->capture_default_str()
      ->group("Output");
  add_repeated(app, "-r,--reverse-prompt,--stop", o.stop, "Stop before this text; may be repeated")
      ->type_name("TEXT")
      ->group("Output");
  add_form_option(app, o.schema);
  app.add_flag("--ignore-eos", o.ignore_eos, "Never draw the end-of-text token")->group("Output");
  app.add_flag("--no-display-prompt", o.hide_prompt, "Print the answer without the prompt")
      ->group("Output");
  app.add_flag("-q,--quiet", o.quiet, "No progress and no statistics")->group("Output");
}

}  // namespace

void add_run(CLI::App& root, Action& action) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* app = root.add_subcommand("run", "Complete a prompt, or chat with -i");
  app->add_option("text", o->words,
                  "A message to answer, as --chat -p does; a model without a template continues "
                  "it. 'pith run MODEL TEXT' is 'pith run -m MODEL TEXT', 'pith run MODEL' a chat")
      ->type_name("");
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  add_device_option(*app, o->engine);
  add_text_options(*app, o->text, "The text to continue");
  add_bos_option(*app, o->bos);
  app->add_flag("-i,--interactive", o->interactive,
                "Read lines and answer each on the same cache (/help shows its commands)")
      ->group("Input");
  app->add_flag("--chat", o->chat,
                "Put the model's chat template around the prompt, as one message, and print the "
                "answer alone")
      ->group("Chat");
  add_chat_options(*app, o->chat_options);
  add_policy_options(*app, o->engine.policy);
  add_error_probe_options(*app, o->engine);
  add_sampling_options(*app, o->sampling);
  add_session_options(*app, *o);
  add_output_options(*app, *o);
  app->footer(
      "The answer goes to standard output, progress and statistics to standard error.\n"
      "The last line break of a file or a pipe is not part of the prompt.\n"
      "Ctrl-C ends an answer early: what there is of it is kept, and the exit status\n"
      "is 130.\n\n"
      "Examples:\n"
      "  pith run smollm2 'Why is the sky blue?'\n"
      "  pith run -m models/demo -p 'The ship lay at anchor' -n 60\n"
      "  pith run -m models/demo -f book.txt -n 100 --temp 0 \\\n"
      "    --kv-policy 'streaming_llm(window=508)'\n"
      "  pith run -m models/demo -p 'Once' --kv-policy uniform --kv-budget 25% \\\n"
      "    -ctk bf16 -ctv bf16\n"
      "  pith run -m smollm2 --chat -p 'What is the capital of France?'\n"
      "  pith run -m models/demo -p 'The ship lay' --session-save ship.pith\n"
      "  pith run -m models/demo -p ' at anchor' --session-load ship.pith\n"
      "  pith run -m models/demo -i --temp 0.7 -r '\\n'\n");
  app->callback([o, &action] {
    action = [o] {
      settle_auto(o->engine);
      return run(*o);
    };
  });
}

}  // namespace pith::cli
