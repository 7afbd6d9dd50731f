#pragma once
// Rows of heads in device memory as Hopper's bulk copies see them: boxes of rows of one head come
// to shared memory in blocks of 64 channels, permuted as wgmma.cuh says; rows past the end are
// zeros.

#include <cuda.h>

#include <cstddef>

#include "pith/dtype.h"

namespace pith::cuda {

/// Row t of head h: `dim` numbers at data + t * row_bytes + h * head_bytes.
struct HeadRows {
  const void* data = nullptr;  // a multiple of 16
  DType dtype = DType::kBF16;  ///< kF16 or kBF16
  int dim = 0;                 ///< a multiple of 64
  size_t rows = 0, row_bytes = 0;
  size_t heads = 0, head_bytes = 0;  // strides: multiples of 16
};

/// Boxes of `box_rows` rows (256 at most) and 64 channels. Coordinates: channel, row, head. Throws
/// kInternal where the driver refuses.
CUtensorMap tensor_map(const HeadRows& of, int box_rows);

}  // namespace pith::cuda
