#pragma once

#include <cuda.h>

namespace emulated {

/// Copies a box of rows to shared memory in the 128-byte swizzle; numbers past the end are zeros.
/// Returns how many bytes it wrote.
int copy_box(void* shared, const CUtensorMap& map, int channel, int row, int head);

}  // namespace emulated
