#pragma once
// Where a query's result goes, for the kernels of a chunk's attention.

#include "attend/cuda/causal.h"
#include "kernels/cuda/numbers.cuh"

namespace pith::cuda {

/// write(to), where `to` points to the [head_dim] numbers of row `at` [T, H] of what this launch
/// leaves: f32 for the launch that comes next, or the result's type.
template <class F>
__device__ inline void write_result(const CausalCall& call, size_t at, const F& write) {
  const size_t first = at * static_cast<size_t>(call.head_dim);
  if (!call.last) {
    write(call.out + first);
  } else if (call.result_dtype == DType::kF32) {
    write(static_cast<float*>(call.result) + first);
  } else if (call.result_dtype == DType::kF16) {
    write(static_cast<__half*>(call.result) + first);
  } else {
    write(static_cast<__nv_bfloat16*>(call.result) + first);
  }
}

}  // namespace pith::cuda
