#pragma once
// The settings that /set changes in a talk.

#include <string>

#include "pith/generate.h"

namespace pith::cli {

/// Sets one by its option's name ("temp", "top-k", "n"). Throws kInvalidArgument, with nothing
/// changed, for an unknown name and a value that the option does not take.
void set_setting(GenerateOptions& options, const std::string& name, const std::string& value);
/// All of them with their values, a line.
std::string describe_settings(const GenerateOptions& options);

}  // namespace pith::cli
