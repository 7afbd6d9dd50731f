#include "attend/cuda/decode_kernel.cuh"
#include "attend/cuda/grouped_tiles.cuh"
#include "rows/cuda/grouped_decode.h"

namespace pith::cuda {
namespace {

struct Codec {
  template <int D>
  using Of = GroupedTiles<ChannelKeys<D, 2>, TokenValues<D, 2, true>>;
};

}  // namespace

void decode_kivi2(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream) {
  launch_decode<Codec>(call, scratch, stream);
}

}  // namespace pith::cuda
