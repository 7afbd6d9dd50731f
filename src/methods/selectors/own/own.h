#pragma once
// Selectors that programs add at run time: pith/own_selector.h.

#include <string_view>
#include <vector>

#include "policy/registry.h"

namespace pith {

/// The row of a selector that was added, or null. Rows stay where they are.
const SelectorRow* find_added_selector(std::string_view name);
/// All of them, by name.
std::vector<const SelectorRow*> added_selectors();

}  // namespace pith
