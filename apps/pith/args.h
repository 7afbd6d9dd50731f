#pragma once
// The command line before and around CLI11: llama.cpp's short names of several letters, escapes,
// and the layout of --help.

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

namespace pith::cli {

/// llama.cpp's options with one dash and several letters, and the long names that stand for them.
/// CLI11 would read -ctk as -c with the value "tk".
const std::vector<std::pair<std::string, std::string>>& short_aliases();

/// The arguments after the program's name, with "help COMMAND" as "COMMAND --help". Aliases and
/// options of llama.cpp's are still as they were typed: translate_arguments (translate.h) reads
/// them.
std::vector<std::string> read_arguments(int count, const char* const* values);

/// \n, \r, \t, \\, \', \" and \xHH become what they stand for; anything else stays as it is.
std::string unescape(std::string_view text);

/// Shows the aliases beside their long names.
std::shared_ptr<CLI::FormatterBase> make_formatter();

/// Checks of options where CLI11's own are too kind: its Range lets NaN pass, and -1 becomes a
/// large unsigned number.
CLI::Validator number_from(double least, double most);
CLI::Validator not_negative();
CLI::Validator not_empty();
/// A storage type of exact rows, or llama.cpp's q8_0 or q4_0 (a codec); its others are answered.
CLI::Validator storage_type(const std::string& option);

/// One argument of an option that may be given several times ("-r A -r B").
template <class T>
CLI::Option* add_repeated(CLI::App& app, const std::string& name, std::vector<T>& values,
                          const std::string& help) {
  return app.add_option(name, values, help)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

}  // namespace pith::cli
