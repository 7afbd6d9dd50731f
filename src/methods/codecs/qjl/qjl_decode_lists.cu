#include "attend/cuda/decode_kernel.cuh"
#include "methods/codecs/qjl/qjl_tiles.cuh"

namespace pith::cuda {
namespace {

template <int kBits>
struct Codec {
  template <int D>
  using Of = GroupedTiles<QjlKeys<D, kBits * D, true>, TokenValues<D, 2, true>>;
};

}  // namespace

void decode_qjl_row_lists(int bits, const DecodeCall& call, const DecodeScratch& scratch,
                          cudaStream_t stream) {
  bits == 2 ? launch_decode<Codec<2>>(call, scratch, stream)
            : launch_decode<Codec<4>>(call, scratch, stream);
}

}  // namespace pith::cuda
