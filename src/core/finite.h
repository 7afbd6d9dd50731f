#pragma once

#include <cstddef>

#include "pith/dtype.h"

namespace pith {

/// True if any of numbers [count] is NaN or infinite.
bool has_non_finite(const void* numbers, DType dtype, size_t count);

}  // namespace pith
