#pragma once
// "Did you mean": the suggestion in refusals of unknown names.

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)  // the library exports all of this

namespace pith {

/// The index of the name that is nearest to `word`: at most two bytes inserted, deleted, changed or
/// swapped with the next, and no more than half of the word's. The first of several; nothing if all
/// are farther. Cost: the product of the lengths per name.
std::optional<size_t> nearest_name(std::string_view word, std::span<const std::string> names);

/// " (did you mean 'list'?)", or nothing where no name is near.
std::string did_you_mean(std::string_view word, std::span<const std::string> names);

}  // namespace pith

#pragma GCC visibility pop
