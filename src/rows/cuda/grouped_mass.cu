// The attention mass of one query over int4 and int8 keys, straight from the codes. Memory-bound:
// reads each key's codes once for eight query heads of a group.

#include <type_traits>

#include "attend/cuda/grouped_tiles.cuh"
#include "attend/cuda/mass_token.cuh"
#include "rows/cuda/grouped_code.h"
#include "rows/cuda/rotated_tiles.cuh"

namespace pith::cuda {
namespace {

template <int kBits, bool kRotated>
struct Codec {
  template <int D>
  using Keys = std::conditional_t<kRotated, RotatedKeys<D, kBits>, TokenKeys<D, kBits>>;
  static constexpr int resident(int dim) { return kBits * dim > 512 ? 4 : 6; }
};
template <int kBits, bool kRotated>
using Mass = BlockKeyMass<Codec<kBits, kRotated>>;

}  // namespace

void add_coded_mass(GroupedCodec keys, const TokenMass& call, const MassTarget* target,
                    cudaStream_t stream) {
  with_rows_of(call.shape.dtype, call.shape.head_dim, [&]<class T, int D>() {
    switch (keys) {
      case GroupedCodec::kInt4: return launch_token<T, D, Mass<4, false>>(call, target, stream);
      case GroupedCodec::kInt8: return launch_token<T, D, Mass<8, false>>(call, target, stream);
      case GroupedCodec::kRotatedInt4:
        return launch_token<T, D, Mass<4, true>>(call, target, stream);
      default: return launch_token<T, D, Mass<8, true>>(call, target, stream);
    }
  });
}

}  // namespace pith::cuda
