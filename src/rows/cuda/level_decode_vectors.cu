// Decode attention where keys or values lie along vectors of their head (level_vectors.cuh).

#include "rows/cuda/level_decode.cuh"

namespace pith::cuda {

void decode_along_vectors(const LevelFormat& format, const DecodeCall& call,
                          const DecodeScratch& scratch, cudaStream_t stream) {
  call.check();
  with_rows_of<256>(call.dtype, call.shape.head_dim, [&]<class T, int D>() {
    const auto launch = format.named() ? launch_levels<T, D, 1, LevelForm::kNamedVectors>
                                       : launch_levels<T, D, 1, LevelForm::kVectors>;
    launch({&format, 1}, call, scratch, stream);
  });
}

}  // namespace pith::cuda
