#pragma once
// Rows of a caller's tensors, of any type and with gaps, into rows of ours and back. Memory-bound:
// every number is read and written once.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "pith/dtype.h"

namespace pith::cuda {

/// [T, heads, D]: the numbers of a row are adjacent, rows are where the strides say, in numbers.
struct StridedRows {
  void* data = nullptr;
  DType dtype = DType::kF32;
  ptrdiff_t token_stride = 0, head_stride = 0;
};

/// to <- factor * from, rounded to nearest.
struct StridedCopy {
  StridedRows to, from;
  int heads = 0;
  float factor = 1;
};

inline constexpr size_t kMostStridedCopies = 24;

/// Copies of equally many tokens and channels, in one launch.
void copy_strided(std::span<const StridedCopy> copies, size_t tokens, size_t dim,
                  cudaStream_t stream);

}  // namespace pith::cuda
