#pragma once
// The subcommand `chat`.

#include "commands.h"

namespace pith::cli {

void add_chat(CLI::App& root, Action& action);

}  // namespace pith::cli
