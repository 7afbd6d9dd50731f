#include "rows/cuda/level_decode.cuh"

namespace pith::cuda {

void decode_levels(std::span<const LevelFormat> formats, const DecodeCall& call,
                   const DecodeScratch& scratch, cudaStream_t stream) {
  if (formats.size() == 1 && formats.front().by_vectors()) {
    return decode_along_vectors(formats.front(), call, scratch, stream);
  }
  if (formats.size() == 1 && formats.front().named()) {
    return decode_named_levels(formats.front(), call, scratch, stream);
  }
  call.check();
  with_rows_of<256>(call.dtype, call.shape.head_dim, [&]<class T, int D>() {
    const auto launch = formats.size() == 1 ? launch_levels<T, D, 1, LevelForm::kRows>
                                            : launch_levels<T, D, 2, LevelForm::kRows>;
    launch(formats, call, scratch, stream);
  });
}

}  // namespace pith::cuda
