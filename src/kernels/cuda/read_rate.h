#pragma once
// The card's read rate, against which decode is held.

#include <cuda_runtime_api.h>

#include <cstddef>

namespace pith::cuda {

/// Reads `bytes` once; `sum` is one f32 on the device.
void read_all(float* sum, const void* from, size_t bytes, cudaStream_t stream);

/// Bytes per second of read_all over 2 GiB: the median of some passes. Waits for the device.
double read_rate();

}  // namespace pith::cuda
