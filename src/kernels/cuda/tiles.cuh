#pragma once
// A warp's way into weights in tiles (kernels/block_tiles.h).

#include "kernels/block_tiles.h"
#include "kernels/cuda/mma.cuh"

namespace pith::cuda {

/// kCount words of a plane: a lane's adjacent words, past L1.
template <int kCount, int kLanes>
__device__ inline void load_plane(uint32_t* to, const std::byte* plane, int who) {
  constexpr int kPiece = tile_piece(kCount);
  const std::byte* mine = plane + 4 * kPiece * who;  // what follows are constants
#pragma unroll
  for (int w = 0; w < kCount; w += kPiece) {
    const std::byte* from = mine + 4 * w * kLanes;
    if constexpr (kPiece == 4) {
      const uint4 x = load_once(from);
      to[w] = x.x, to[w + 1] = x.y, to[w + 2] = x.z, to[w + 3] = x.w;
    } else if constexpr (kPiece == 2) {
      const uint2 x = __ldcs(reinterpret_cast<const uint2*>(from));
      to[w] = x.x, to[w + 1] = x.y;
    } else {
      to[w] = __ldcs(reinterpret_cast<const unsigned*>(from));
    }
  }
}

template <class F>
__device__ inline void load_step(LaneStep<F>& s, const std::byte* step, int lane) {
  load_plane<F::kBase, kTileLanes>(s.base, step, lane);
  step += 4 * kTileLanes * F::kBase;
  if constexpr (F::kHigh > 0) load_plane<F::kHigh, kTileLanes>(s.high, step, lane);
  step += 4 * kTileLanes * F::kHigh;
  load_plane<F::kOwn, kTileLanes>(s.own, step, lane);
  step += 4 * kTileLanes * F::kOwn;
  if constexpr (F::kShared > 0) load_plane<F::kShared, 8>(s.shared, step, lane / 4);
}

/// Of a whole warp.
template <class F>
__device__ inline void load_sides(LaneSides<F>& to, const LaneStep<F>& s, int lane) {
  uint32_t halves[4] = {};
  if constexpr (F::kSides == BlockSides::kSixBits) {
    const uint32_t mine = shared_half(s);
#pragma unroll
    for (int c = 0; c < 4; ++c) halves[c] = __shfl_sync(~0u, mine, (lane & ~3) | c);
  }
  unpack_sides(to, s, halves);
}

}  // namespace pith::cuda
