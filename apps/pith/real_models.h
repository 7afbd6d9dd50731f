#pragma once
// Subcommands around models that are fetched by name: as commands.h declares the others.

#include "commands.h"

namespace pith::cli {

void add_pull(CLI::App& root, Action& action);

}  // namespace pith::cli
