#pragma once
// A command line of llama.cpp's or ollama's hands becomes one of pith's, before CLI11 reads it.

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace pith::cli {

/// Makes the arguments of a command into its own: aliases become long names, llama.cpp's options
/// that it lacks are taken out (LlamaOptions), `run MODEL` names a model, and a talk that is asked
/// for by `run` goes to `chat`. Values of options stay as they are. Throws CLI::ParseError.
void translate_arguments(const CLI::App& root, std::vector<std::string>& arguments);

}  // namespace pith::cli
