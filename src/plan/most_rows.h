#pragma once

#include <cstddef>

namespace pith {

/// More rows than any cache holds: what counts of rows are bounded by.
inline constexpr size_t kMostRows = size_t{1} << 30;

}  // namespace pith
