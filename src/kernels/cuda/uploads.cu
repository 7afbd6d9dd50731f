#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/uploads.h"

#include <algorithm>

namespace pith::cuda {
namespace {

constexpr int kThreads = 128;
constexpr size_t kMostUploads = 160, kMostBlocks = 32;     // of a launch; of an upload
constexpr int kLanes = 16, kTogether = kThreads / kLanes;  // of a spread; spreads a block reads
static_assert(Spread::kWords <= kLanes && sizeof(Spread) % sizeof(uint64_t) == 0);

struct Uploads {
  struct One {
    void* to;
    const void* from;
    uint32_t bytes, spreads;
  };
  One all[kMostUploads];
};

/// A lane writes its word of each descriptor.
__device__ void spread(const Uploads::One& u) {
  using Word = unsigned long long;
  constexpr int kRead = sizeof(Spread) / sizeof(Word);
  __shared__ Word words[kTogether * kRead];
  const int all = static_cast<int>(u.bytes / sizeof(Spread));
  const int step = static_cast<int>(gridDim.x) * kTogether;
  for (int first = static_cast<int>(blockIdx.x) * kTogether; first < all; first += step) {
    const int count = min(kTogether, all - first);
    const Word* from = static_cast<const Word*>(u.from) + first * kRead;
    for (int i = threadIdx.x; i < count * kRead; i += kThreads) words[i] = __ldcv(from + i);
    __syncthreads();
    const int mine = static_cast<int>(threadIdx.x) / kLanes;
    const int word = static_cast<int>(threadIdx.x) % kLanes;
    if (mine < count && word < static_cast<int>(Spread::kWords)) {
      const Spread& s = reinterpret_cast<const Spread*>(words)[mine];
      const bool moves = word < static_cast<int>(Spread::kSteps);
      const Word more = moves ? Word{s.step[word]} * Spread::kUnit : 0;
      Word number = s.first[word];
      Word* to = static_cast<Word*>(u.to) + size_t{s.at} * Spread::kWords + word;
      for (int i = 0; i < s.count; ++i, number += more, to += s.apart * Spread::kWords)
        *to = number;
    }
    __syncthreads();
  }
}

/// A row of blocks an upload. Bytes: each once over the bus.
__global__ void __launch_bounds__(kThreads) upload_kernel(const __grid_constant__ Uploads p) {
  const Uploads::One& u = p.all[blockIdx.y];
  if (u.spreads) return spread(u);
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
    size_t most = 1;  // blocks
    for (size_t i = 0; i < count; ++i) {
      const Upload& u = uploads[first + i];
      some.all[i] = {u.to, u.from, static_cast<uint32_t>(u.bytes), u.spreads};
      const size_t of_block = u.spreads ? kTogether * sizeof(Spread) : kThreads * sizeof(uint4);
      most = std::max(most, u.bytes / of_block + (u.spreads ? 1 : 0));
    }
    const size_t blocks = std::min(most, kMostBlocks);
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(count));
    launch_kernel(upload_kernel, {grid, kThreads}, stream, "the upload of a step", some);
  }
}

}  // namespace pith::cuda
