// Products of tiles of formats of 256 weights a block, by groups of coded tokens.

#include "kernels/cuda/tile_matvec.cuh"

namespace pith::cuda {

void launch_large_groups(const TileMatvecParams& p, cudaStream_t stream) {
  with_block_type(p.call.w.type, [&]<WeightType kType> {
    if constexpr (BlockLayout<kType>::kBlock == 256) launch_groups<kType>(p, stream);
  });
  if (p.groups == 1) launch_large_tiles(p, kTokensAtOnce, stream);
}

}  // namespace pith::cuda
