#include "unknown_words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "pith/nearest.h"

namespace pith::cli {
namespace {

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({}))
    if (!command->get_name().empty()) names.push_back(command->get_name());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

void refuse_unknown_command(const CLI::App& root, const std::vector<std::string>& arguments) {
  const CLI::App* app = &root;
  std::string before;
  for (const std::string& word : arguments) {
    const std::vector<std::string> names = commands_of(*app);
    if (names.empty() || word.starts_with('-')) return;
    if (!std::binary_search(names.begin(), names.end(), word)) {
      const std::string near = did_you_mean(word, names);
      throw CLI::ExtrasError(
          fmt::format("there is no command '{}{}'{}", before, word,
                      near.empty() ? fmt::format("; commands: {}", fmt::join(names, ", ")) : near),
          CLI::ExitCodes::ExtrasError);
    }
    before += word + " ";
    app = app->get_subcommand(word);
  }
}

std::string unknown_option(const CLI::App& root) {
  const CLI::App* app = &root;
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  const std::vector<std::string> left = app->remaining();
  const auto found = std::find_if(left.begin(), left.end(), [](const std::string& word) {
    return word.size() > 2 && word.starts_with('-');
  });
  if (found == left.end()) return "";
  const std::string word = found->substr(0, found->find('='));
  std::vector<std::string> names;
  for (const CLI::Option* option : app->get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return fmt::format("there is no option '{}'{}", word, did_you_mean(word, names));
}

}  // namespace pith::cli
