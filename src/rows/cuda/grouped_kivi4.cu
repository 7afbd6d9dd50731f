#include "attend/cuda/decode_kernel.cuh"
#include "attend/cuda/grouped_tiles.cuh"
#include "rows/cuda/grouped_decode.h"

namespace pith::cuda {
namespace {

struct Codec {
  template <int D>
  using Of = GroupedTiles<ChannelKeys<D, 4>, TokenValues<D, 4, true>>;
};

}  // namespace

void decode_kivi4(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream) {
  launch_decode<Codec>(call, scratch, stream);
}

}  // namespace pith::cuda
