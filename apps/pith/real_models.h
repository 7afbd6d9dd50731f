#pragma once
// Subcommands around models and servers that are here: as commands.h declares the others.

#include "commands.h"

namespace pith::cli {

void add_pull(CLI::App& root, Action& action);
/// `list` and `rm`.
void add_local_models(CLI::App& root, Action& action);
void add_ps(CLI::App& root, Action& action);
void add_template(CLI::App& root, Action& action);

}  // namespace pith::cli
