#include "core/philox.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "methods/selectors/uniform/uniform_cuda.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    words_kernel(const __grid_constant__ CandidateRows rows, WordSource source, uint32_t* keys,
                 size_t stride) {
  const int row = blockIdx.x * kThreads + threadIdx.x, head = blockIdx.y;
  if (row >= rows.rows) return;
  const int64_t position = row < rows.known ? rows.positions[head * rows.side_stride + row]
                                            : rows.first_position + row - rows.known;
  const Philox random(source.seed, source.layer, source.first_head + head);
  keys[head * stride + row] = ~random.words(static_cast<uint64_t>(position), 0)[0];
}

}  // namespace

void score_words(const SelectSpace& space, const CandidateRows& rows, const WordSource& source,
                 cudaStream_t stream) {
  const dim3 grid((rows.rows + kThreads - 1) / kThreads, rows.heads);
  launch_kernel(words_kernel, {grid, kThreads}, stream, "scores of rows", rows, source, space.keys,
                space.stride);
}

}  // namespace pith::cuda
