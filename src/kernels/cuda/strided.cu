#include <algorithm>

#include "kernels/cuda/device.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numbers.cuh"
#include "kernels/cuda/strided.h"
#include "pith/error.h"

namespace pith::cuda {
namespace {

constexpr int kThreads = 128, kLanes = 32, kWarps = kThreads / kLanes;
constexpr size_t kMostBlocks = 4096;  // of a copy: more rows go round

struct Copies {
  StridedCopy all[kMostStridedCopies];
  size_t tokens;
  int dim;
};

__device__ inline float read(const StridedRows& rows, ptrdiff_t at) {
  switch (rows.dtype) {
    case DType::kF16: return to_float(static_cast<const __half*>(rows.data)[at]);
    case DType::kBF16: return to_float(static_cast<const __nv_bfloat16*>(rows.data)[at]);
    default: return static_cast<const float*>(rows.data)[at];
  }
}
__device__ inline void write(const StridedRows& rows, ptrdiff_t at, float x) {
  switch (rows.dtype) {
    case DType::kF16: static_cast<__half*>(rows.data)[at] = from_float<__half>(x); break;
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(rows.data)[at] = from_float<__nv_bfloat16>(x);
      break;
    default: static_cast<float*>(rows.data)[at] = x;
  }
}
__device__ inline ptrdiff_t row_of(const StridedRows& rows, size_t token, size_t head) {
  return static_cast<ptrdiff_t>(token) * rows.token_stride +
         static_cast<ptrdiff_t>(head) * rows.head_stride;
}

/// A warp per row, a row of blocks a copy.
__global__ void __launch_bounds__(kThreads) strided_kernel(const __grid_constant__ Copies p) {
  const StridedCopy& copy = p.all[blockIdx.y];
  const auto heads = static_cast<size_t>(copy.heads);
  const size_t rows = p.tokens * heads, step = static_cast<size_t>(gridDim.x) * kWarps;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (size_t row = blockIdx.x * static_cast<size_t>(kWarps) + threadIdx.x / kLanes; row < rows;
       row += step) {
    const ptrdiff_t from = row_of(copy.from, row / heads, row % heads);
    const ptrdiff_t to = row_of(copy.to, row / heads, row % heads);
    for (int c = lane; c < p.dim; c += kLanes)
      write(copy.to, to + c, copy.factor * read(copy.from, from + c));
  }
}

}  // namespace

void copy_strided(std::span<const StridedCopy> copies, size_t tokens, size_t dim,
                  cudaStream_t stream) {
  if (copies.size() > kMostStridedCopies)
    throw Error(ErrorCode::kInternal, "more strided copies than a launch takes");
  Copies params{};
  size_t most = 0;
  for (size_t i = 0; i < copies.size(); ++i) {
    params.all[i] = copies[i];
    most = std::max(most, tokens * static_cast<size_t>(copies[i].heads));
  }
  if (most == 0 || dim == 0) return;
  params.tokens = tokens;
  params.dim = static_cast<int>(dim);
  const dim3 grid(static_cast<unsigned>(std::min((most + kWarps - 1) / kWarps, kMostBlocks)),
                  static_cast<unsigned>(copies.size()));
  launch_kernel(strided_kernel, {grid, kThreads}, stream, "rows of a caller's tensors", params);
}

}  // namespace pith::cuda
