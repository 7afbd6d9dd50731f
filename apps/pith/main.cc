// pith: run language models with a compressed KV cache. See commands.h for the subcommands.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <vector>

#include "args.h"
#include "ask.h"
#include "chat.h"
#include "commands.h"
#include "console.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith/isa.h"
#include "pith/version.h"
#include "pith_commit.h"
#include "real_models.h"
#include "serve.h"
#include "translate.h"
#include "unknown_words.h"

namespace pith::cli {
namespace {

std::string version_text() {
  const std::string commit = PITH_COMMIT;
  return fmt::format("pith {}{}\nCPU kernels: {}; CUDA: {}", PITH_VERSION,
                     commit.empty() ? "" : " (commit " + commit + ")", fmt::join(cpu_isas(), ", "),
                     PITH_HAS_CUDA ? "yes" : "no");
}

void describe(CLI::App& app) {
  app.formatter(make_formatter());
  app.set_version_flag("--version", version_text, "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.footer(
      "A model is a folder in Hugging Face's layout (config.json, *.safetensors,\n"
      "tokenizer), a GGUF file, or a name of 'pith pull'. 'pith help COMMAND'\n"
      "explains a command's options; most have llama.cpp's names.\n\n"
      "Examples:\n"
      "  pith demo                                        what compression does\n"
      "  pith run -m models/demo -p 'The ship lay' -n 60  complete a text\n"
      "  pith run MODEL                                   chat in its template\n"
      "  pith run MODEL 'Name three rivers.'              answer one message\n"
      "  pith serve -m FOLDER                             OpenAI's API on port 8080\n"
      "  pith run -m models/demo -i                       continue from typed lines\n"
      "  pith inspect -m models/demo --kv-policy uniform  what a policy will cost\n"
      "  pith bench -m models/demo -d 0,4096              how fast it is\n\n"
      "Exit status: 0 fine; 2 a wrong command line; 9 ended by --max-attn-error; 130\n"
      "ended by Ctrl-C; 143 by SIGTERM; 141 the reader of the output has gone; else\n"
      "10 = a parameter or prompt that makes no sense, 11 = not found, 12 = a damaged\n"
      "file, 13 = unsupported, 14 = out of memory, 15 = context full, 16 = NaN or\n"
      "infinity, 17 = read or write refused, 18 = a bug.\n");
}

int report(const std::string& message, int status) {
  say(fmt::format("pith: error: {}", message));
  return status;
}

int run_action(const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    if (interrupted()) return kExitInterrupted;
    if (reader_gone()) return kExitReaderGone;
    return report(error.what(), kExitError + static_cast<int>(error.code()));
  } catch (const std::bad_alloc&) {
    return report(
        "the machine has no memory left for this; use a smaller context (-c), a policy "
        "that keeps fewer rows, or a smaller model",
        kExitError + static_cast<int>(ErrorCode::kOutOfMemory));
  } catch (const std::exception& error) {
    return report(fmt::format("{} (a bug of pith's: please report it)", error.what()),
                  kExitError + static_cast<int>(ErrorCode::kInternal));
  }
}

/// CLI11 reads -1 and 2^64 as 2^64 - 1 where a number has no sign.
void refuse_wrapped_seeds(CLI::App& app) {
  static const CLI::Validator kWhole(
      [](std::string& text) {
        uint64_t value = 0;
        const char* const end = text.data() + text.size();
        const auto read = std::from_chars(text.data(), end, value);
        return read.ec == std::errc() && read.ptr == end
                   ? std::string()
                   : text + " is not a whole number from 0 to 2^64 - 1";
      },
      "");
  for (CLI::Option* option : app.get_options())
    if (option->get_name(false, true).find("seed") != std::string::npos) option->check(kWhole);
  for (CLI::App* command : app.get_subcommands({})) refuse_wrapped_seeds(*command);
}

// --help and --version are "errors" to CLI11; wrong command lines point to the help.
int report_usage(const CLI::App& root, const std::vector<std::string>& arguments,
                 const CLI::ParseError& error) {
  if (error.get_exit_code() == 0) {
    const bool version = dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr;
    return run_action([&] {
      write_out(version ? std::string(error.what()) + "\n" : root.help());
      return 0;
    });
  }
  std::string command = "pith";
  for (const CLI::App* known : root.get_subcommands({}))
    if (!arguments.empty() && known->get_name() == arguments[0]) command += " " + arguments[0];
  std::string message = unknown_option(root);
  if (message.empty()) message = error.what();
  if (message.ends_with('\n')) message.pop_back();
  return report(fmt::format("{}; see '{} --help'", message, command), kExitUsage);
}

int run(int count, const char* const* values) {
  CLI::App root("pith runs language models with a compressed KV cache.", "pith");
  describe(root);
  Action action;
  add_run(root, action);
  add_chat(root, action);
  add_serve(root, action);
  add_ask(root, action);
  add_inspect(root, action);
  add_policies(root, action);
  add_bench(root, action);
  add_demo(root, action);
  add_probe(root, action);
  add_eval(root, action);
  add_report(root, action);
  add_reproduce(root, action);
  add_pull(root, action);
  add_local_models(root, action);
  add_ps(root, action);
  add_quantize(root, action);
  add_session(root, action);
  add_template(root, action);
  add_tokenize(root, action);
  add_logits(root, action);
  add_attend(root, action);
  add_train_dict(root, action);
  add_tune(root, action);
  add_completion(root, action);
  refuse_wrapped_seeds(root);
  auto arguments = read_arguments(count, values);
  try {
    refuse_unknown_command(root, arguments);
    translate_arguments(root, arguments);
    // CLI11 takes them from the back.
    root.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return report_usage(root, arguments, error);
  } catch (const Error& error) {  // of a model's name
    return report(error.what(), kExitError + static_cast<int>(error.code()));
  }
  return run_action(action);
}

constexpr int kExitNoMemory = kExitError + static_cast<int>(ErrorCode::kOutOfMemory);

void say_no_memory() {
  constexpr std::string_view kWords = "pith: error: the machine has no memory left for this\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kWords.data(), kWords.size());
}

/// Before CLI11 makes its tables, which it does before main(): an allocation that fails there, or
/// where nothing may be thrown, ends the program as one that fails elsewhere does.
[[gnu::constructor(101)]] void end_without_memory() {
  static const std::terminate_handler kBefore = std::get_terminate();
  std::set_terminate([] {
    try {
      if (std::current_exception()) throw;
    } catch (const std::bad_alloc&) {
      say_no_memory();
      std::_Exit(kExitNoMemory);
    } catch (...) {  // its own words follow
    }
    kBefore();
  });
}

int main(int count, const char* const* values) {
  prepare_streams();
  install_interrupt_handler();
  int status = 0;
  try {
    status = run(count, values);
  } catch (const std::bad_alloc&) {  // tables of options, or a message of another error
    say_no_memory();
    status = kExitNoMemory;
  }
  return terminated() && status == kExitInterrupted ? kExitTerminated : status;
}

}  // namespace
}  // namespace pith::cli

int main(int count, char** values) { return pith::cli::main(count, values); }
