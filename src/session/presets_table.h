#pragma once
// The presets of this build, as JSON lines. The table itself is made by tools/results_presets.py.

#include <string_view>

namespace pith {

extern const std::string_view kPresetTable;

}  // namespace pith
