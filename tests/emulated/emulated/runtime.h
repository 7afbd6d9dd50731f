#pragma once
// The parts of the emulated card's runtime that launches need (runtime.cc).

#include <cuda_runtime_api.h>

#include <functional>

namespace emulated {

/// As cudaLaunchKernelEx of a kernel whose thread runs body().
cudaError_t launch(const cudaLaunchConfig_t& shape, std::function<void()> body);
cudaError_t allow(cudaFuncAttribute what, int value);
/// Runs `work` when the stream comes to it.
void enqueue(cudaStream_t stream, std::function<void()> work);

}  // namespace emulated
