#include "attend/cuda/decode_kernel.cuh"
#include "rows/cuda/grouped_decode.h"
#include "rows/cuda/rotated_tiles.cuh"

namespace pith::cuda {
namespace {

struct Codec {
  template <int D>
  using Of = GroupedTiles<RotatedKeys<D, 4>, RotatedValues<D, 4>>;
};

}  // namespace

void decode_rotated_int4(const DecodeCall& call, const DecodeScratch& scratch,
                         cudaStream_t stream) {
  launch_decode<Codec>(call, scratch, stream);
}

}  // namespace pith::cuda
