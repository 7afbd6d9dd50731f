#include "translate.h"

#include <unistd.h>

#include <algorithm>
#include <span>

#include "args.h"
#include "llama_options.h"

namespace pith::cli {
namespace {

const CLI::App* find_command(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({}))
    if (command->get_name() == name) return command;
  return nullptr;
}

/// CLI11's own search ends the program where no memory is left.
const CLI::Option* find_option(const CLI::App& command, const std::string& name) {
  for (const CLI::Option* option : command.get_options())
    if (option->check_name(name)) return option;
  return nullptr;
}

constexpr size_t kNoOption = ~size_t{0};

/// How many of the arguments behind `argument` are values of it: none where it brings its own, as
/// --name=value. kNoOption if the command has no such option.
size_t values_behind(const CLI::App& command, const std::string& argument) {
  if (!argument.starts_with('-')) return kNoOption;
  const CLI::Option* option = find_option(command, argument.substr(0, argument.find('=')));
  if (option == nullptr) return kNoOption;
  const bool brings = argument.find('=') != std::string::npos;
  return brings ? 0 : static_cast<size_t>(std::max(option->get_items_expected_min(), 0));
}

/// Calls `see` with the place of each argument that is no option's value, up to "--".
template <class See>
void for_each_word(const CLI::App& command, const std::vector<std::string>& arguments, size_t first,
                   const See& see) {
  for (size_t i = first; i < arguments.size() && arguments[i] != "--"; ++i) {
    see(i);
    const size_t values = values_behind(command, arguments[i]);
    if (values != kNoOption) i += values;
  }
}

/// `pith run MODEL` before a terminal, with nothing to go on with, is a talk as it is in ollama.
bool is_talk(const CLI::App& run, const std::vector<std::string>& own) {
  size_t words = 0;
  bool talks = isatty(STDIN_FILENO) != 0;
  for_each_word(run, own, 1, [&](size_t i) {
    if (!own[i].starts_with('-')) ++words;
    for (const char* other : {"-m", "-p", "-f", "-i", "-h", "--model", "--prompt", "--file",
                              "--interactive", "--help", "--chat", "--json"})
      talks = talks && own[i].substr(0, own[i].find('=')) != other;
  });
  return talks && words == 1;
}

/// `pith run MODEL TEXT`: the first word names the model, unless -m does. Those behind it are the
/// first message of `chat`; other commands take them as they are.
void name_words(const CLI::App& command, std::vector<std::string>& own) {
  const auto at = [&](size_t i) { return own.begin() + static_cast<ptrdiff_t>(i); };
  std::vector<size_t> words;
  bool named = false;
  for_each_word(command, own, 1, [&](size_t i) {
    if (!own[i].starts_with('-')) words.push_back(i);
    named = named || own[i].starts_with("--model") || (own[i].starts_with("-m"));
  });
  const size_t message = named ? 0 : 1;
  if (command.get_name() == "chat" && words.size() > message) {
    for (size_t w = words.size(); --w > message; own.erase(at(words[w])))
      own[words[w - 1]] += " " + own[words[w]];
    own.insert(at(words[message]), "-p");
  }
  if (!words.empty() && !named) own.insert(at(words[0]), "-m");
}

}  // namespace

void translate_arguments(const CLI::App& root, std::vector<std::string>& arguments) {
  if (arguments.empty()) return;
  if (arguments[0] == "run" && std::erase_if(arguments, [](const std::string& a) {
                                 return a == "-cnv" || a == "--conversation";
                               }) > 0)
    arguments[0] = "chat";
  const CLI::App* command = find_command(root, arguments[0]);
  if (command == nullptr) return;
  std::vector<std::string> own{arguments[0]};
  if (arguments.size() > 1)
    if (const auto* inner = find_command(*command, arguments[1]); inner != nullptr)
      command = inner, own.push_back(arguments[1]);
  LlamaOptions foreign(command->get_name());
  for (size_t i = own.size(); i < arguments.size(); ++i) {
    if (arguments[i] == "--") {
      own.insert(own.end(), arguments.begin() + static_cast<ptrdiff_t>(i), arguments.end());
      break;
    }
    own.push_back(arguments[i]);
    for (const auto& [alias, full] : short_aliases())
      if (arguments[i] == alias && find_option(*command, full) != nullptr) own.back() = full;
    if (const size_t values = values_behind(*command, own.back()); values != kNoOption) {
      for (size_t v = 0; v < values && i + 1 < arguments.size(); ++v) own.push_back(arguments[++i]);
    } else if (const size_t taken = foreign.take(std::span(arguments).subspan(i)); taken > 0) {
      own.pop_back();
      i += taken - 1;
    }
  }
  foreign.settle();
  if (own[0] == "run" && is_talk(*command, own)) {
    own[0] = "chat";
    command = find_command(root, "chat");
  }
  for (const char* takes_a_name : {"run", "chat", "serve", "inspect"})
    if (own[0] == takes_a_name) name_words(*command, own);
  arguments = std::move(own);
}

}  // namespace pith::cli
