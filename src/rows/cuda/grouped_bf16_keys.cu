#include "attend/cuda/decode_kernel.cuh"
#include "attend/cuda/row_tiles.cuh"
#include "rows/cuda/grouped_decode.h"

namespace pith::cuda {
namespace {

template <int kBits>
struct Codec {
  template <int D>
  using Of = GroupedTiles<RowKeys<__nv_bfloat16, D>, TokenValues<D, kBits, false>>;
};

}  // namespace

void decode_bf16_keys(int bits, const DecodeCall& call, const DecodeScratch& scratch,
                      cudaStream_t stream) {
  bits == 4 ? launch_decode<Codec<4>>(call, scratch, stream)
            : launch_decode<Codec<8>>(call, scratch, stream);
}

}  // namespace pith::cuda
