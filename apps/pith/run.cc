// pith run: completes a prompt, or holds a conversation with -i.

#include <fmt/format.h>
#include <unistd.h>

#include <memory>

#include "args.h"
#include "commands.h"
#include "console.h"
#include "conversation.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/error.h"
#include "report.h"
#include "text_input.h"

namespace pith::cli {
namespace {

struct RunOptions {
  EngineOptions engine;
  TextOptions text;
  SamplingOptions sampling;
  int64_t predict = -1;
  std::vector<std::string> stop;
  bool ignore_eos = false, interactive = false, hide_prompt = false, quiet = false;
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

// The prompt of -p, -f or standard input; empty only in interactive mode.
std::string prompt_of(const RunOptions& o) {
  const bool given = o.text.prompt_option->count() > 0 || !o.text.file.empty();
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
  if (prompt.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the prompt is empty: at least one character is needed to go on from");
  }
  return prompt;
}

int complete(Session session, const RunOptions& o, const std::string& prompt) {
  const auto ids = encode_prompt(session.model(), prompt, o.bos);
  if (!o.hide_prompt && !o.engine.json) write_out(prompt);
  ProgressBar bar("reading the prompt", "tokens", o.engine.json || o.quiet);
  const auto show = [&](std::string_view piece) {
    if (!o.engine.json) write_out(piece);
  };
  // The bar must be gone before the first word of the answer.
  const Progress progress = [&](size_t done, size_t total) {
    const bool go_on = bar.update(done, total);
    if (done >= total) bar.finish();
    return go_on;
  };
  const GenerateResult result = generate(session, ids, generate_options(o), show, progress);
  bar.finish();
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

int run(const RunOptions& o) {
  if (o.interactive && o.engine.json) {
    throw Error(ErrorCode::kInvalidArgument,
                "--json prints one answer as one object and cannot go with -i");
  }
  const std::string prompt = prompt_of(o);
  const auto generate = generate_options(o);
  const Sampler checked(generate.sampling);  // a wrong option is said before the model is loaded
  const SessionOptions options = session_options(o.engine);
  Session session(load_model(o.engine), options);
  if (!o.interactive) return complete(std::move(session), o, prompt);
  return run_interactive(std::move(session), {generate, prompt, o.bos, !o.hide_prompt});
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
  app.add_flag("--ignore-eos", o.ignore_eos, "Never draw the end-of-text token")->group("Output");
  app.add_flag("--no-display-prompt", o.hide_prompt, "Print the answer without the prompt")
      ->group("Output");
  app.add_flag("-q,--quiet", o.quiet, "No progress and no statistics")->group("Output");
}

}  // namespace

void add_run(CLI::App& root, Action& action) {
  auto o = std::make_shared<RunOptions>();
  CLI::App* app = root.add_subcommand("run", "Complete a prompt, or talk with -i");
  add_model_option(*app, o->engine);
  add_engine_options(*app, o->engine);
  add_device_option(*app, o->engine);
  add_text_options(*app, o->text, "The text to go on from");
  add_bos_option(*app, o->bos);
  app->add_flag("-i,--interactive", o->interactive,
                "Read lines and answer each on the same cache (/help shows its commands)")
      ->group("Input");
  add_policy_options(*app, o->engine.policy);
  add_error_probe_options(*app, o->engine);
  add_sampling_options(*app, o->sampling);
  add_output_options(*app, *o);
  app->footer(
      "The answer goes to standard output, progress and statistics to standard error.\n"
      "Ctrl-C ends an answer early: what there is of it is kept, and the exit status is 130.\n\n"
      "Examples:\n"
      "  pith run -m models/demo -p 'The ship lay at anchor' -n 60\n"
      "  pith run -m models/demo -f book.txt -n 100 --temp 0 --kv-policy "
      "'streaming_llm(window=508)'\n"
      "  pith run -m models/demo -p 'Once' --kv-policy uniform --kv-budget 25% -ctk bf16 -ctv "
      "bf16\n"
      "  pith run -m models/demo -i --temp 0.7 -r '\\n'\n");
  app->callback([o, &action] {
    action = [o] {
      settle_auto(o->engine);
      return run(*o);
    };
  });
}

}  // namespace pith::cli
