#pragma once
// Warp-level building blocks beside the instructions of ptx.cuh: packing, and sums over rows.

#include "kernels/cuda/ptx.cuh"

namespace pith::cuda {

/// Two f32 numbers rounded to T; `low` goes to the lower half.
template <class T>
__device__ inline uint32_t pack(float low, float high);
template <>
__device__ inline uint32_t pack<__half>(float low, float high) {
  const __half2 h = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}
template <>
__device__ inline uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 h = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&h);
}

/// Four numbers of T, or of f32, to where four fit.
template <class T>
__device__ inline void store_four(T* to, const float (&y)[4]) {
  if constexpr (sizeof(T) == 4) {
    *reinterpret_cast<float4*>(to) = {y[0], y[1], y[2], y[3]};
  } else {
    *reinterpret_cast<uint2*>(to) = {pack<T>(y[0], y[1]), pack<T>(y[2], y[3])};
  }
}

__device__ inline uint32_t multiply(uint32_t a, uint32_t b) {  // f16 pairs
  const __half2 p = __hmul2(*reinterpret_cast<__half2*>(&a), *reinterpret_cast<__half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&p);
}

/// The largest, and the sum, over the lanes that hold the same columns of C (same lane % 4).
__device__ inline float max_over_rows(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}
__device__ inline float sum_over_rows(float x) {
  x += __shfl_xor_sync(~0u, x, 4);
  x += __shfl_xor_sync(~0u, x, 8);
  return x + __shfl_xor_sync(~0u, x, 16);
}
/// Over the four neighbouring lanes that have a row.
__device__ inline float sum_over_columns(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

}  // namespace pith::cuda
