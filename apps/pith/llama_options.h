#pragma once
// Options that fingers know from llama.cpp and pith does not have: recognised, so that the answer
// says what pith has instead (CLI11 would read -ngl as -n with the value "gl").

#include <string>
#include <string_view>

namespace pith::cli {

/// The advice instead of `option` ("-ngl"); empty if it is none of these.
std::string_view instead_of(std::string_view option);

/// The advice instead of llama.cpp's cache type `type` ("q8_0") for "keys" or "values", given by
/// -ctk or -ctv; empty if it is none of its types.
std::string instead_of_type(std::string_view option, std::string_view type);

}  // namespace pith::cli
