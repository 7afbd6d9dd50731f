#pragma once
// The instruction sets of this CPU that Pith has kernels for.

#include <string>
#include <vector>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// Names that EngineOptions::isa takes here, best first; "scalar" is always last.
std::vector<std::string> cpu_isas();

}  // namespace pith

#pragma GCC visibility pop
