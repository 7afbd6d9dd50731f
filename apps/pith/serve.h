#pragma once
// The subcommand `serve`.

#include "commands.h"

namespace pith::cli {

void add_serve(CLI::App& root, Action& action);

}  // namespace pith::cli
