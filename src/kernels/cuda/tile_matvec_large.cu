// Products of tiles of formats of 256 weights a block.

#include "kernels/cuda/tile_matvec.cuh"

namespace pith::cuda {

void launch_large_tiles(const TileMatvecParams& p, int tokens, cudaStream_t stream) {
  with_block_type(p.call.w.type, [&]<WeightType kType> {
    if constexpr (BlockLayout<kType>::kBlock == 256) launch_tiles<kType>(p, tokens, stream);
  });
}

}  // namespace pith::cuda
