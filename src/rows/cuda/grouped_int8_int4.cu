#include "attend/cuda/decode_kernel.cuh"
#include "attend/cuda/grouped_tiles.cuh"
#include "rows/cuda/grouped_decode.h"

namespace pith::cuda {
namespace {

struct Codec {
  template <int D>
  using Of = GroupedTiles<TokenKeys<D, 8>, TokenValues<D, 4, false>>;
};

}  // namespace

void decode_int8_int4(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream) {
  launch_decode<Codec>(call, scratch, stream);
}

}  // namespace pith::cuda
