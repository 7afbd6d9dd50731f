#pragma once
// The subcommand `ask`.

#include "commands.h"

namespace pith::cli {

void add_ask(CLI::App& root, Action& action);

}  // namespace pith::cli
