#include "attend/cuda/decode_kernel.cuh"
#include "methods/codecs/qjl/qjl_level_tiles.cuh"
#include "methods/codecs/qjl/qjl_levels_cuda.h"

namespace pith::cuda {
namespace {

template <int kBits>
struct Codec {
  template <int D>
  using Of = GroupedTiles<TightKeys<D, kBits>, TightValues<D, kBits>>;
};

}  // namespace

void decode_qjl_levels(int bits, const DecodeCall& call, const DecodeScratch& scratch,
                       cudaStream_t stream) {
  bits == 2 ? launch_decode<Codec<2>>(call, scratch, stream)
            : launch_decode<Codec<3>>(call, scratch, stream);
}

}  // namespace pith::cuda
