#pragma once
// Refusals of commands and options that there are not, with the nearest that there is.

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace pith::cli {

/// "there is no command 'sreve' (did you mean 'serve'?)", also of commands below a command: CLI11
/// would ask for "a subcommand".
void refuse_unknown_command(const CLI::App& root, const std::vector<std::string>& arguments);

/// "there is no option '--tempp' (did you mean '--temp'?)": after a parse that failed; "" if it
/// left no option.
std::string unknown_option(const CLI::App& root);

}  // namespace pith::cli
