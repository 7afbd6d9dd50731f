// Rows that stand alone: see level_format.h. Of rows with records those are read where they lie.
// Cost above that of other rows: 4 D bytes per row of keys in KIVI's form, from cache where
// neighbours have one record.

#include "rows/cuda/level_decode.cuh"

namespace pith::cuda {

void decode_named_levels(const LevelFormat& format, const DecodeCall& call,
                         const DecodeScratch& scratch, cudaStream_t stream) {
  call.check();
  with_rows_of<256>(call.dtype, call.shape.head_dim, [&]<class T, int D>() {
    launch_levels<T, D, 1, LevelForm::kNamed>({&format, 1}, call, scratch, stream);
  });
}

}  // namespace pith::cuda
