// pith chat: a conversation through the model's own chat template.

#include "chat.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat_options.h"
#include "chat_settings.h"
#include "console.h"
#include "conversation.h"
#include "core/output_file.h"
#include "engine.h"
#include "error_scale.h"
#include "interrupt.h"
#include "line_reader.h"
#include "pith/error.h"
#include "pith/nearest.h"
#include "pith_tools/choose.h"
#include "pith_tools/dialogue.h"
#include "report.h"
#include "rows_table.h"
#include "text_input.h"

namespace pith::cli {
namespace {

struct TalkOptions {
  ModelOptions engine;
  ChatOptions chat;
  SamplingOptions sampling;
  std::string prompt, file, history, session, tools;
  int64_t predict = -1;
  bool quiet = false, single = false;
};

constexpr std::string_view kHelp =
    "  /clear, /reset  forget everything but the system prompt\n"
    "  /undo           take back the last message and its answer\n"
    "  /retry          answer the last message again, with the next seed\n"
    "  /system TEXT    another system prompt ('' = none); alone: the present one\n"
    "  /set NAME VALUE another temp, top-k, top-p, seed, n ...; alone: all of them\n"
    "  /policy quarter (half, tenth, 30%): the best cache policy of that size\n"
    "  /policy POLICY  another cache policy, under which all is read again\n"
    "  /policy         the policy in force\n"
    "  /save FILE      write the conversation as JSON, for --history FILE\n"
    "  /session FILE   save the session with its cache; nothing is read again after\n"
    "                  --session-load FILE\n"
    "  /load FILE      continue from a file of /session or /save\n"
    "  /rows           what each layer holds\n"
    "  /quit, /bye     end (also Ctrl-D, or Ctrl-C twice at the prompt)\n"
    "Ctrl-C stops an answer.\n";

std::string no_command(std::string_view command) {
  std::vector<std::string> names;  // what kHelp has with a stroke in front
  for (size_t at = 0; (at = kHelp.find('/', at)) != kHelp.npos; ++at)
    names.emplace_back(kHelp.substr(at, kHelp.find_first_of(" ,\n", at) - at));
  return fmt::format("There is no command {}{}; /help shows those that exist.", command,
                     did_you_mean(command, names));
}

/// "[37 read, 8 written at 86.1/s; 44 of 44 rows per KV head, 1.01 MiB (exact 1.01 MiB); attention
/// error 0.04: small]".
std::string statistics_line(const Dialogue::Answer& answer, const Session& session) {
  const Ledger ledger = session.ledger();
  const ModelConfig& config = session.model().config();
  const auto heads = static_cast<uint64_t>(config.layers) * static_cast<uint64_t>(config.kv_heads);
  const double exact =
      static_cast<double>(ledger.tokens) * static_cast<double>(config.bytes_per_token(DType::kF16));
  const auto bytes = [](double n) { return human_bytes(n); };
  const GenerateResult& r = answer.result;
  const std::string error = short_error(session.attention_errors());
  return fmt::format(
      "[{} read{}, {} written at {:.1f}/s; {} of {} rows per KV head{}, {} (exact {}){}]",
      r.prompt_tokens, answer.read_again ? " anew" : "", r.tokens.size(), r.decode_per_second(),
      ledger.rows_kept / heads, ledger.tokens,
      nothing_dropped(session).empty() ? "" : ", none dropped yet",
      bytes(static_cast<double>(ledger.cache_bytes())), bytes(exact),
      error.empty() ? "" : "; " + error);
}

class Talk {
 public:
  Talk(Dialogue dialogue, const TalkOptions& options)
      : dialogue_(std::move(dialogue)), options_(options) {}

  int run(const std::string& first) {
    if (lines_.terminal()) greet();
    if (!options_.history.empty() && !options_.quiet) tell_history(options_.history);
    if (!options_.session.empty() && !options_.quiet) tell_session(options_.session);
    if (!first.empty()) {
      if (lines_.terminal()) fmt::print(stderr, "\n> {}\n", first);
      answer(first);
      if (options_.single) return status_;
    }
    for (;;) {
      if (!lines_.terminal() && status_ == kExitInterrupted) return status_;
      if (lines_.terminal()) fmt::print(stderr, "\n");
      const auto text = lines_.read();
      if (!text && interrupted()) return kExitInterrupted;
      // Someone who sits here has seen what went wrong; a script has not.
      if (!text || ends(*text)) return lines_.terminal() ? 0 : status_;
      if (text->find_first_not_of(" \t\n") == std::string::npos) continue;
      text->starts_with('/') ? obey(*text) : answer(*text);
      if (options_.single && !text->starts_with('/')) return status_;
    }
  }

 private:
  static bool ends(const std::string& text) {
    return text == "/quit" || text == "/exit" || text == "/bye";
  }

  void greet() {
    say(options_.engine.model);
    say(fmt::format("Template: {}. Context: {} tokens. /help shows the commands.",
                    dialogue_.chat_template().name(), dialogue_.session().context()));
  }

  void obey(const std::string& text) {
    const size_t space = std::min(text.find(' '), text.size());
    const std::string command = text.substr(0, space);
    const size_t begin = text.find_first_not_of(' ', space);
    const std::string rest = begin == std::string::npos ? "" : text.substr(begin);
    try {
      if (command == "/help" || command == "/?") {
        fmt::print(stderr, "{}{}", line_help(lines_), kHelp);
      } else if (command == "/reset" || command == "/clear") {
        dialogue_.reset();
        fmt::print(stderr, "The conversation is empty.\n");
      } else if (command == "/undo") {
        undo();
      } else if (command == "/retry") {
        retry();
      } else if (command == "/system") {
        set_system(rest);
      } else if (command == "/set") {
        set(rest);
      } else if (command == "/policy") {
        set_policy(rest);
      } else if (command == "/save") {
        save(rest);
      } else if (command == "/session") {
        save_session(rest);
      } else if (command == "/load") {
        load(rest);
      } else if (command == "/rows") {
        fmt::print(stderr, "{}", rows_table(dialogue_.session()));
      } else {
        say(no_command(command));
      }
    } catch (const Error& error) {
      say(fmt::format("pith: error: {}", error.what()));
    }
    clear_interrupt();
  }

  void set_policy(const std::string& text) {
    if (text.empty()) {
      say(dialogue_.session().describe_policy());
      return;
    }
    ProgressBar bar("reading again", "tokens", options_.quiet);
    const size_t count = dialogue_.set_policy(policy_of(text), bar.callback());
    bar.finish();
    say(dialogue_.session().describe_policy());
    if (count > 0)
      fmt::print(stderr, "Read {} tokens again under it: rows once dropped do not come back.\n",
                 count);
  }

  /// "quarter", "30%", "auto 30%", "auto" (of a quarter) or a policy.
  Policy policy_of(const std::string& text) {
    const bool chosen = text == "auto" || text.starts_with("auto ");
    const std::string size = !chosen ? text : text == "auto" ? "25%" : text.substr(5);
    const std::string budget = memory_budget(size);
    if (!chosen && !says_memory(text)) return Policy::parse(text);
    ModelOptions engine = options_.engine;
    engine.policy = {};
    engine.policy.policy = "auto", engine.policy.budget = budget;
    engine.policy.presets = options_.engine.policy.presets;
    engine.policy.verbose = options_.engine.policy.verbose;
    engine.policy.goal = options_.engine.policy.goal;
    engine.policy.no_screen = options_.engine.policy.no_screen;
    const Session& session = dialogue_.session();
    settle_auto(
        engine, nullptr,
        {.context = static_cast<int64_t>(session.context()), .model = session.engine()->model()});
    return Policy::parse(engine.policy.policy);
  }

  void undo() {
    if (!dialogue_.undo())
      throw Error(ErrorCode::kInvalidArgument, "there is no message to take back");
    say(fmt::format("Took back the last message; {} stay, and are read again with the next.",
                    describe_messages(dialogue_.messages())));
  }

  /// The conversation stays as it was where no other answer comes.
  void retry() {
    const Dialogue::Json before = dialogue_.messages();
    const auto content = dialogue_.undo();
    if (!content || !content->is_string()) {
      if (content) dialogue_.load(before);
      throw Error(ErrorCode::kInvalidArgument, "there is no message of plain text to answer again");
    }
    SamplingOptions& sampling = dialogue_.generation().sampling;
    ++sampling.seed;
    if (sampling.temperature > 0)
      say(fmt::format("Seed {}.", sampling.seed));
    else
      say("At a temperature of 0 the answer is the same; /set temp 0.8 changes it.");
    answer(*content);
    if (dialogue_.messages().size() < 2 || dialogue_.messages().back()["role"] != "assistant")
      dialogue_.load(before);
  }

  void set_system(const std::string& text) {
    if (text.empty()) {
      const Dialogue::Json& messages = dialogue_.messages();
      const bool given = !messages.empty() && messages[0]["role"] == "system";
      say(given ? messages[0]["content"].dump() : "There is none but the template's own, if any.");
      return;
    }
    require_utf8(text, "the system prompt");
    const bool none = text == "''" || text == "\"\"";
    dialogue_.set_system(none ? std::string() : text);
    say(fmt::format("The system prompt is {}; {}", none ? "empty" : "another",
                    dialogue_.messages().size() > 1
                        ? "what was said is read again with the next message."
                        : "it counts from the first message."));
  }

  /// "temp 0.5", and as ollama has it "parameter temperature 0.5" and "system TEXT".
  void set(std::string text) {
    if (text.starts_with("parameter ")) text.erase(0, text.find_first_not_of(' ', 9));
    const size_t space = std::min(text.find_first_of(" ="), text.size());
    const size_t value = std::min(text.find_first_not_of(" =", space), text.size());
    if (text.starts_with("system ")) return set_system(text.substr(value));
    if (!text.empty())
      set_setting(dialogue_.generation(), text.substr(0, space), text.substr(value));
    say(describe_settings(dialogue_.generation()));
  }

  void save(const std::string& path) {
    if (path.empty()) throw Error(ErrorCode::kInvalidArgument, "/save needs the name of a file");
    if (std::filesystem::exists(path) && path != saved_) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} is there already; choose another name", path));
    }
    const Dialogue::Json json{{"model", options_.engine.model},
                              {"policy", dialogue_.session().options().policy.to_string()},
                              {"messages", dialogue_.messages()}};
    write_file(path, json.dump(2) + "\n");
    saved_ = path;
    fmt::print(stderr, "Wrote {} messages to {}.\n", dialogue_.messages().size(), path);
  }

  void save_session(const std::string& path) {
    if (path.empty()) throw Error(ErrorCode::kInvalidArgument, "/session needs the name of a file");
    dialogue_.save(path, path == session_file_);
    session_file_ = path;
    fmt::print(stderr, "Saved {} tokens in {}.\n", dialogue_.session().tokens(), path);
  }

  void load(const std::string& path) {
    if (path.empty()) throw Error(ErrorCode::kInvalidArgument, "/load needs the name of a file");
    if (is_session(path)) {
      dialogue_.resume(path);
      tell_session(path);
    } else {
      dialogue_.load(read_messages(path));
      tell_history(path);
    }
  }

  void tell_session(const std::string& path) {
    say(fmt::format("Continues from {}: {}, {} tokens; nothing is read again.", path,
                    describe_messages(dialogue_.messages()), dialogue_.session().tokens()));
  }
  void tell_history(const std::string& path) {
    say(fmt::format("Continues from {}: {}, read with the next message.", path,
                    describe_messages(dialogue_.messages())));
  }

  // An error ends the turn, not the conversation.
  void answer(const std::string& text) {
    try {
      require_utf8(text, "the message");
      ProgressBar bar("reading", "tokens", options_.quiet);
      const Progress progress = [&](size_t done, size_t total) {
        const bool go_on = bar.update(done, total);
        if (done >= total) bar.finish();
        return go_on;
      };
      const auto shown = [](std::string_view piece) { write_out(piece); };
      const Dialogue::Answer answer = dialogue_.answer(text, shown, progress);
      bar.finish();
      write_out("\n");
      tell(answer);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kIo && !interrupted()) throw;  // nobody reads what is said
      status_ = kExitError + static_cast<int>(error.code());
      say(fmt::format("pith: error: {}", error.what()));
      if (error.code() == ErrorCode::kContextFull) advise_room();
    }
    clear_interrupt();
  }

  void tell(const Dialogue::Answer& answer) {
    status_ = 0;
    const GenerateResult& result = answer.result;
    if (result.reason == StopReason::kCancelled) {
      status_ = kExitInterrupted;
      fmt::print(stderr, "Stopped{}.\n", result.tokens.empty() ? "; the message is forgotten" : "");
    }
    if (!options_.quiet) say(statistics_line(answer, dialogue_.session()));
    if (result.reason == StopReason::kContextFull) advise_room();
    if (result.reason == StopReason::kAttentionError) {
      status_ = kExitAttentionError;
      fmt::print(stderr, "Ended by --max-attn-error.\n");
    }
  }

  void advise_room() {
    say(fmt::format(
        "The context of {} tokens is full. /reset begins anew; -c N makes room for more.",
        dialogue_.session().context()));
  }

  Dialogue dialogue_;
  const TalkOptions& options_;
  LineReader lines_;
  std::string saved_, session_file_;
  int status_ = 0;
};

int run(const TalkOptions& o) {
  if (o.engine.json)
    throw Error(ErrorCode::kInvalidArgument,
                "--json is for one answer: 'pith run --chat -p TEXT --json'");
  GenerateOptions generate;
  generate.sampling = o.sampling;
  generate.max_tokens = o.predict;
  generate.cancel = &interrupted();
  const Sampler checked(generate.sampling);  // a wrong option is said before the model is loaded
  const StandaloneOptions options = session_options(o.engine);
  std::string first = o.prompt;
  if (!o.file.empty()) first = read_all(o.file);
  if (!o.file.empty()) drop_last_break(first);
  const auto history = o.history.empty() ? Dialogue::Json() : read_messages(o.history);
  const std::string tools = o.tools.empty() ? "" : read_all(o.tools);
  const auto model = load_model(o.engine);
  ChatTemplate chosen = choose_template(o.engine.model, model->tokenizer(), o.chat);
  end_turns(chosen, chosen.turn_end(model->tokenizer()), generate);
  Dialogue dialogue(model, options, std::move(chosen),
                    {system_of(o.chat), o.chat.variables, tools, generate});
  if (!o.history.empty()) {
    dialogue.load(history);
    if (o.chat.system_given) dialogue.set_system(o.chat.system);
  }
  if (!o.session.empty()) dialogue.resume(o.session);
  return Talk(std::move(dialogue), o).run(first);
}

void add_talk_options(CLI::App& app, TalkOptions& o) {
  const auto option = [&](const char* name, std::string& value, const char* help,
                          const char* type) {
    return app.add_option(name, value, help)->type_name(type)->group("Chat");
  };
  auto* prompt = option("-p,--prompt", o.prompt, "The first message; lines follow", "TEXT");
  option("-f,--file", o.file, "The first message, from a file", "FILE")->excludes(prompt);
  option("--history", o.history, "A conversation to continue: of /save, or a list of messages",
         "FILE");
  option("--session-load", o.session,
         "A session to continue: of /session, or of 'pith run --chat --session-save'; nothing is "
         "read again",
         "FILE")
      ->excludes("--history");
  option("--tools", o.tools, "Tools that the template shows to the model, a JSON list", "FILE");
  app.add_option("-n,--predict,--n-predict", o.predict,
                 "Most tokens an answer; -1 = until it or the context ends")
      ->check(CLI::Range(int64_t{-1}, int64_t{1} << 40))
      ->type_name("N")
      ->capture_default_str()
      ->group("Output");
  app.add_flag("--single-turn", o.single, "End after the first answer")->group("Output");
  app.add_flag("-q,--quiet", o.quiet, "No progress and no statistics")->group("Output");
}

}  // namespace

void add_chat(CLI::App& root, Action& action) {
  auto o = std::make_shared<TalkOptions>();
  CLI::App* app = root.add_subcommand(
      "chat", "Talk with a model through its chat template; 'pith run MODEL' is the same");
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  add_device_option(*app, o->engine);
  add_chat_options(*app, o->chat);
  add_policy_options(*app, o->engine.policy);
  add_error_probe_options(*app, o->engine);
  add_sampling_options(*app, o->sampling);
  add_talk_options(*app, *o);
  app->footer(
      "Answers go to standard output, all else to standard error. /help shows the\n"
      "commands of a chat. Special tokens that you type are text; only the template's\n"
      "count.\n\n"
      "Examples:\n"
      "  pith chat smollm2\n"
      "  pith chat -m smollm2 --system 'Answer in one sentence.' --temp 0\n"
      "  pith chat -m smollm2 --kv-policy 'keydiff(budget=25%)+int4'\n"
      "  pith chat -m models/demo --chat-template chatml\n");
  app->callback([o, &action] {
    action = [o] {
      settle_auto(o->engine);
      return run(*o);
    };
  });
}

}  // namespace pith::cli
