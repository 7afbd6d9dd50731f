#pragma once
// What the GPU of Device::kCuda is doing, whoever makes it do so.

#include <cstddef>

namespace pith {

/// Bytes per second that the GPU reads from its memory, measured. Throws kUnsupported in a build
/// without CUDA and on a machine without a GPU.
double cuda_read_rate();
/// Bytes of the GPU's memory that are taken, by whomever. Throws as cuda_read_rate does.
size_t cuda_bytes_in_use();

}  // namespace pith
