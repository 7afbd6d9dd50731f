#include "attend/cuda/decode_kernel.cuh"
#include "methods/codecs/qjl/qjl_tiles.cuh"

namespace pith::cuda {
namespace {

/// kBits: of a sketch, a channel.
template <int kBits, bool kRowLists>
struct Codec {
  template <int D>
  using Of = GroupedTiles<QjlKeys<D, kBits * D, kRowLists>, TokenValues<D, 2, true>>;
};

}  // namespace

void decode_qjl(const QjlProjection& projection, const DecodeCall& call,
                const DecodeScratch& scratch, cudaStream_t stream) {
  projection.check();
  DecodeCall own = call;
  own.table = projection.half_rows;
  const bool two = projection.m == 2 * projection.head_dim;
  if (projection.row_lists) {
    two ? launch_decode<Codec<2, true>>(own, scratch, stream)
        : launch_decode<Codec<4, true>>(own, scratch, stream);
  } else {
    two ? launch_decode<Codec<2, false>>(own, scratch, stream)
        : launch_decode<Codec<4, false>>(own, scratch, stream);
  }
}

}  // namespace pith::cuda
