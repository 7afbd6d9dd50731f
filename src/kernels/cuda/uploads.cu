#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/uploads.h"

#include <algorithm>

namespace pith::cuda {
namespace {

constexpr int kThreads = 128;
constexpr size_t kMostUploads = 160, kMostBlocks = 32;  // of a launch; of an upload

struct Uploads {
  Upload all[kMostUploads];
};

/// A row of blocks an upload. Bytes: each once over the bus.
__global__ void __launch_bounds__(kThreads) upload_kernel(const __grid_constant__ Uploads p) {
  const Upload& u = p.all[blockIdx.y];
  const auto* from = static_cast<const uint4*>(u.from);
  const size_t pieces = u.bytes / sizeof(uint4), all = static_cast<size_t>(gridDim.x) * kThreads;
  const size_t mine = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  for (size_t i = mine; i < pieces; i += all) static_cast<uint4*>(u.to)[i] = __ldcv(from + i);
  const size_t last = pieces * 4 + mine;  // up to three numbers are left
  if (last < u.bytes / 4) {
    static_cast<uint32_t*>(u.to)[last] = __ldcv(static_cast<const uint32_t*>(u.from) + last);
  }
}

}  // namespace

void upload_all(std::span<const Upload> uploads, cudaStream_t stream) {
  for (size_t first = 0; first < uploads.size(); first += kMostUploads) {
    const size_t count = std::min(kMostUploads, uploads.size() - first);
    Uploads some;
    size_t most = 0;
    for (size_t i = 0; i < count; ++i) {
      some.all[i] = uploads[first + i];
      most = std::max(most, some.all[i].bytes);
    }
    const size_t blocks = std::clamp<size_t>(most / (kThreads * sizeof(uint4)), 1, kMostBlocks);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(count));
    launch_kernel(upload_kernel, {grid, kThreads}, stream, "the upload of a step", some);
  }
}

}  // namespace pith::cuda
