#pragma once
// Codecs that programs add at run time: pith/own_codec.h.

#include <string_view>
#include <vector>

#include "policy/registry.h"

namespace pith {

/// The row of a codec that was added, or null. Rows stay where they are.
const CodecRow* find_added_codec(std::string_view name);
/// All of them, by name.
std::vector<const CodecRow*> added_codecs();

}  // namespace pith
