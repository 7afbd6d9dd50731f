#pragma once
// The presets of this build, as JSON lines. The tables are made by tools/results_presets.py.

#include <string_view>

namespace pith {

extern const std::string_view kPresetTable;
/// Those that were tuned for the layers of one model, which they name.
extern const std::string_view kTunedPresetTable;

}  // namespace pith
