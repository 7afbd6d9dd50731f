#include "attend/cuda/decode_kernel.cuh"
#include "methods/codecs/qjl/qjl_tiles.cuh"

namespace pith::cuda {
namespace {

/// kBits: of a sketch, a channel.
template <int kBits>
struct Codec {
  template <int D>
  using Of = GroupedTiles<QjlKeys<D, kBits * D>, TokenValues<D, 2, true>>;
};

}  // namespace

void decode_qjl(const QjlProjection& projection, const DecodeCall& call,
                const DecodeScratch& scratch, cudaStream_t stream) {
  projection.check();
  DecodeCall sketched = call;
  sketched.table = projection.half_rows;
  const bool two = projection.m == 2 * projection.head_dim;
  if (projection.row_lists) {
    decode_qjl_row_lists(two ? 2 : 4, sketched, scratch, stream);
  } else {
    two ? launch_decode<Codec<2>>(sketched, scratch, stream)
        : launch_decode<Codec<4>>(sketched, scratch, stream);
  }
}

}  // namespace pith::cuda
