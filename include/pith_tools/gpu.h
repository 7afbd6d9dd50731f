#pragma once
// The memory of the GPU of Device::kCuda.

#include <cstddef>

namespace pith {

/// Bytes per second that the GPU reads from its memory, measured. Throws kUnsupported in a build
/// without CUDA and on a machine without a GPU.
double cuda_read_rate();
/// Bytes of the GPU's memory in use by all programs. Throws as cuda_read_rate does.
size_t cuda_bytes_in_use();

}  // namespace pith
