#pragma once
// Grouped rows that a Walsh-Hadamard transform rotated before they were coded, as operands of the
// decode kernel: queries are rotated once per head, weighted values rotated back once per warp and
// head. A row costs as much as an unrotated one.

#include "attend/cuda/grouped_tiles.cuh"
#include "rows/cuda/level_lane.cuh"

namespace pith::cuda {

template <int D, int kBits>
struct RotatedKeys : TokenKeys<D, kBits> {
  using Keys = TokenKeys<D, kBits>;
  static constexpr int kTurnedAt = Keys::kQueryBytes;  // [8, D] f32 rotated queries
  static constexpr int kQueryBytes = kTurnedAt + kDecodeQueries * D * 4;

  static __device__ void prepare(char* to, const float* q, int queries, const void* table,
                                 typename Keys::Ahead ahead) {
    auto* turned = reinterpret_cast<float*>(to + kTurnedAt);
    rotate_queries<D>(turned, q, 0);
    __syncthreads();
    Keys::prepare(to, turned, queries, table, ahead);
  }
};

template <int D, int kBits>
struct RotatedValues : TokenValues<D, kBits, false> {
  static constexpr bool kRotated = true;
};

}  // namespace pith::cuda
