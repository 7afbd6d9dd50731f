#pragma once
// Keys rotated to other positions, after their RoPE: position p is p + steps then.
//
// Cost: each number is read and written once, a sine a pair.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "pith/dtype.h"

namespace pith::cuda {

struct TurnRowsCall {
  DType dtype = DType::kF16;  ///< kF16 or kBF16
  const void* from = nullptr;
  void* to = nullptr;                   // [rows, D], as from
  const double* frequencies = nullptr;  // [D/2] radians a position
  int rows = 0, dim = 0;
  int64_t steps = 0;
  const int64_t* steps_at = nullptr;  ///< if not null they are there, on the device
};
void turn_rows(const TurnRowsCall& call, cudaStream_t stream);

}  // namespace pith::cuda
