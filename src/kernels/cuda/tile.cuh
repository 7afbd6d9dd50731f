#pragma once
// Tiles of f16 or bf16 rows in shared memory, as operands of the tensor cores. A row's 16-byte
// pieces are permuted by the row's number, so that eight rows at one piece lie in different banks.

#include "kernels/cuda/mma.cuh"

namespace pith::cuda {

/// Where piece `piece` of row `row` lies in a tile of D channels, in bytes.
template <int D>
__device__ inline int piece_at(int row, int piece) {
  return row * (2 * D) + ((piece ^ (row & 7)) << 4);
}

/// A of step `step` (channels 16 step ..): tile rows first .. first + 15.
template <int D>
__device__ inline void load_a(uint32_t (&x)[4], const char* tile, int first, int step) {
  const int lane = threadIdx.x % kWarp;
  load_matrices(x, tile + piece_at<D>(first + lane % 16, 2 * step + lane / 16));
}
/// B of step `step` for columns = tile rows first .. first + 15: x[0], x[1] of the first eight.
template <int D>
__device__ inline void load_b(uint32_t (&x)[4], const char* tile, int first, int step) {
  const int lane = threadIdx.x % kWarp;
  load_matrices(x, tile + piece_at<D>(first + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}

template <class T>
__device__ inline float2 unpack_pair(uint32_t x);
template <>
__device__ inline float2 unpack_pair<__half>(uint32_t x) {
  return __half22float2(*reinterpret_cast<const __half2*>(&x));
}
template <>
__device__ inline float2 unpack_pair<__nv_bfloat16>(uint32_t x) {
  return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&x));
}

/// The 8 numbers of a 16-byte piece.
template <class T>
__device__ inline void unpack_piece(float (&x)[8], const uint4& piece) {
  const uint32_t words[4] = {piece.x, piece.y, piece.z, piece.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack_pair<T>(words[i]);
    x[2 * i] = two.x;
    x[2 * i + 1] = two.y;
  }
}

}  // namespace pith::cuda
