#pragma once
// The presets that this build carries: the files of presets/, JSON lines (cmake/embed.cmake).

#include <string_view>
#include <vector>

namespace pith {

/// Policies that are safe on all models measured so far, with the worst figures of any of them.
extern const std::vector<std::string_view> kPresetsForAny;
/// One text a model, which its lines name by its fingerprint.
extern const std::vector<std::string_view> kPresetsOfModels;

}  // namespace pith
