#include "attend/cuda/decode_kernel.cuh"
#include "methods/codecs/qjl/qjl_level_tiles.cuh"
#include "methods/codecs/qjl/qjl_levels_cuda.h"

namespace pith::cuda {
namespace {

struct Codec {
  template <int D>
  using Of = GroupedTiles<TightKeys<D, 2>, TightValues<D, 2>>;
};

}  // namespace

void decode_qjl_levels2(const DecodeCall& call, const DecodeScratch& scratch, cudaStream_t stream) {
  launch_decode<Codec>(call, scratch, stream);
}

}  // namespace pith::cuda
