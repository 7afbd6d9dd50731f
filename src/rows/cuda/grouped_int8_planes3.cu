#include "attend/cuda/decode_kernel.cuh"
#include "rows/cuda/grouped_decode.h"
#include "rows/cuda/plane_tiles.cuh"

namespace pith::cuda {
namespace {

struct Codec {
  template <int D>
  using Of = GroupedTiles<TokenKeys<D, 8>, TurboquantValues<D, 3>>;
};

}  // namespace

void decode_int8_turboquant3(const DecodeCall& call, const DecodeScratch& scratch,
                             cudaStream_t stream) {
  launch_decode<Codec>(call, scratch, stream);
}

}  // namespace pith::cuda
