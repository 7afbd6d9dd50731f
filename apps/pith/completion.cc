// pith completion: shell completion scripts, made from the options that really exist.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "args.h"
#include "commands.h"
#include "console.h"
#include "pith/chat.h"
#include "pith/policy.h"

namespace pith::cli {
namespace {

struct OptionEntry {
  std::vector<std::string> names;  // with their dashes, aliases included
  std::string help, type;          // type is empty for flags
};

struct CommandEntry {
  std::string name, help;
  std::vector<OptionEntry> options;
  std::string parent;  // of a command within a command; empty otherwise

  /// One word that stands for the command in a script.
  std::string key() const { return parent.empty() ? name : parent + "-" + name; }
};

// The first sentence, without what shells would have to be told to take literally; an apostrophe
// is printed as the typographic one, which no shell reads.
std::string plain(const std::string& help) {
  std::string out;
  for (char c : help.substr(0, help.find_first_of(";(:"))) {
    if (c == '\'')
      out += "\u2019";
    else if (std::string_view("\"`$[]\\\n").find(c) == std::string_view::npos)
      out += c;
  }
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

OptionEntry entry_of(const CLI::Option& option) {
  OptionEntry entry;
  for (const auto& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const auto& name : option.get_lnames()) {
    entry.names.push_back("--" + name);
    for (const auto& [alias, full] : short_aliases()) {
      if (full == entry.names.back()) entry.names.push_back(alias);
    }
  }
  entry.help = plain(option.get_description());
  if (option.get_items_expected_max() > 0) entry.type = option.get_type_name();
  if (option.get_items_expected_max() > 0 && entry.type.empty()) entry.type = "VALUE";
  return entry;
}

CommandEntry entry_of(const CLI::App& app, const std::string& parent = "") {
  CommandEntry entry{app.get_name(), plain(app.get_description()), {}, parent};
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_positional()) entry.options.push_back(entry_of(*option));
  }
  return entry;
}

bool starts(const std::string& text, const char* prefix) { return text.rfind(prefix, 0) == 0; }
bool is_file(const OptionEntry& o) { return starts(o.type, "FILE") || starts(o.type, "IDS"); }
bool is_folder(const OptionEntry& o) { return starts(o.type, "FOLDER"); }

// Values that can be listed, or nothing.
std::vector<std::string> values_of(const OptionEntry& o) {
  for (const std::string& name : o.names) {
    if (name == "--chat-template") {
      const auto names = ChatTemplate::built_in_names();
      return {names.begin(), names.end()};
    }
    if (name == "--isa") return {"scalar", "avx2", "avx512", "avx512_vnni"};
    const bool codec = starts(name, "--cache-type");
    if (!codec && name != "--kv-policy") continue;
    std::vector<std::string> listed;
    for (const MethodInfo& m : methods())
      if (m.is_selector != codec) listed.push_back(m.name);
    return listed;
  }
  return {};
}

std::string bash_script(const std::vector<CommandEntry>& commands) {
  std::vector<std::string> names;
  std::string words, values, within;
  for (const auto& c : commands) {
    std::vector<std::string> options;
    if (c.parent.empty()) names.push_back(c.name);
    if (!c.parent.empty())
      within += fmt::format("    \"{} {}\") command={} ;;\n", c.parent, c.name, c.key());
    for (const auto& inner : commands)
      if (inner.parent == c.name) options.push_back(inner.name);
    for (const auto& o : c.options) options.insert(options.end(), o.names.begin(), o.names.end());
    words += fmt::format("    {}) words=\"{}\" ;;\n", c.key(), fmt::join(options, " "));
    for (const auto& o : c.options) {
      const auto pattern =
          fmt::format("{}:{}", c.key(), fmt::join(o.names, fmt::format("|{}:", c.key())));
      const auto known = values_of(o);
      std::string generate;
      if (!known.empty())
        generate = fmt::format("compgen -W \"{}\"", fmt::join(known, " "));
      else if (is_folder(o))
        generate = "compgen -d";
      else if (is_file(o))
        generate = "compgen -f";
      else if (!o.type.empty())
        generate = ":";
      if (!generate.empty()) {
        values += fmt::format("    {}) COMPREPLY=($({} -- \"$current\")); return ;;\n", pattern,
                              generate);
      }
    }
  }
  return fmt::format(R"(# bash completion of pith; use it with: source <(pith completion bash)
_pith() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{} --help --version" -- "$current"))
    return
  fi
  if [ "$command" = completion ]; then
    COMPREPLY=($(compgen -W "bash zsh fish --help" -- "$current"))
    return
  fi
  case "$command ${{COMP_WORDS[2]}}" in
{}  esac
  case "$command:$previous" in
{}  esac
  case "$command" in
{}  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -F _pith pith
)",
                     fmt::join(names, " "), within, values, words);
}

std::string zsh_script(const std::vector<CommandEntry>& commands) {
  std::string list, cases, within;
  for (const auto& c : commands) {
    std::string inner;
    for (const auto& i : commands)
      if (i.parent == c.name) inner += (inner.empty() ? "" : " ") + i.name;
    if (c.parent.empty())
      list += fmt::format("    '{}:{}'\n", c.name, c.help);
    else
      within += fmt::format(
          "  if [[ \"$command $words[2]\" == \"{} {}\" ]]; then command={}; shift words; (( "
          "CURRENT-- )); fi\n",
          c.parent, c.name, c.key());
    cases += fmt::format("    {})\n      _arguments \\\n", c.key());
    if (!inner.empty()) cases += fmt::format("        '1:command:({})' \\\n", inner);
    for (const auto& o : c.options) {
      std::string value;
      const auto known = values_of(o);
      if (!known.empty())
        value = fmt::format(":value:({})", fmt::join(known, " "));
      else if (is_folder(o))
        value = ":folder:_files -/";
      else if (is_file(o))
        value = ":file:_files";
      else if (!o.type.empty())
        value = fmt::format(":{}: ", plain(o.type));
      for (const auto& name : o.names) {
        cases += fmt::format("        '*{}[{}]{}' \\\n", name, o.help, value);
      }
    }
    if (c.name == "completion") cases += "        '1:shell:(bash zsh fish)' \\\n";
    cases += "        && return ;;\n";
  }
  return fmt::format(R"(#compdef pith
# zsh completion of pith; save it as _pith in a folder of $fpath, or: source <(pith completion zsh)
_pith() {{
  local -a commands
  commands=(
{}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  (( CURRENT-- ))
{}  case $command in
{}  esac
}}
if [ "$funcstack[1]" = _pith ]; then _pith "$@"; else compdef _pith pith; fi
)",
                     list, within, cases);
}

std::string fish_script(const std::vector<CommandEntry>& commands) {
  std::string out =
      "# fish completion of pith; save it as ~/.config/fish/completions/pith.fish\n"
      "complete -c pith -f\n";
  for (const auto& c : commands) {
    const std::string where = c.parent.empty()
                                  ? "__fish_use_subcommand"
                                  : fmt::format("'__fish_seen_subcommand_from {}'", c.parent);
    out += fmt::format("complete -c pith -n {} -a {} -d '{}'\n", where, c.name, c.help);
    for (const auto& o : c.options) {
      out += fmt::format("complete -c pith -n '__fish_seen_subcommand_from {}'", c.name);
      for (const auto& name : o.names) {
        const bool full = starts(name, "--");
        out += full ? " -l " + name.substr(2)
                    : fmt::format(" -{} {}", name.size() == 2 ? "s" : "o", name.substr(1));
      }
      const auto known = values_of(o);
      if (!known.empty())
        out += fmt::format(" -x -a '{}'", fmt::join(known, " "));
      else if (is_folder(o))
        out += " -x -a '(__fish_complete_directories)'";
      else if (is_file(o))
        out += " -r -F";
      else if (!o.type.empty())
        out += " -x";
      out += fmt::format(" -d '{}'\n", o.help);
    }
  }
  return out + "complete -c pith -n '__fish_seen_subcommand_from completion' -a 'bash zsh fish'\n";
}

int print_completion(const CLI::App& root, const std::string& shell) {
  std::vector<CommandEntry> commands;
  for (const CLI::App* app : root.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(entry_of(*app));
    for (const CLI::App* inner : app->get_subcommands([](const CLI::App*) { return true; }))
      commands.push_back(entry_of(*inner, app->get_name()));
  }
  if (shell == "bash") write_out(bash_script(commands));
  if (shell == "zsh") write_out(zsh_script(commands));
  if (shell == "fish") write_out(fish_script(commands));
  return 0;
}

}  // namespace

void add_completion(CLI::App& root, Action& action) {
  auto shell = std::make_shared<std::string>();
  CLI::App* app = root.add_subcommand("completion", "Print a completion script for your shell");
  app->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}))
      ->type_name("SHELL");
  app->footer(
      "Examples:\n"
      "  source <(pith completion bash)                    # in ~/.bashrc\n"
      "  pith completion zsh > ~/.zfunc/_pith              # a folder of $fpath\n"
      "  pith completion fish > ~/.config/fish/completions/pith.fish\n");
  app->callback([shell, &root, &action] {
    action = [shell, &root] { return print_completion(root, *shell); };
  });
}

}  // namespace pith::cli
