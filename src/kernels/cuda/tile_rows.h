#pragma once
// Weights in blocks on their way into tiles and out of them: packing as they come from a file, and
// decoding whole rows. Decoded numbers equal the CPU's to the last bit before they are rounded.

#include "kernels/cuda/tile_matvec.h"
#include "pith/dtype.h"

namespace pith::cuda {

/// tiles <- rows [first, first + count) of a matrix, from `rows`: their blocks in the file's order,
/// on the device. `first` is a multiple of 16; so is `count`, but where the matrix ends.
struct PackCall {
  std::byte* tiles = nullptr;
  WeightType type = WeightType::kQ8Zero;
  size_t in = 0, first = 0, count = 0;
  const std::byte* rows = nullptr;
};
void pack_tiles(const PackCall& call, cudaStream_t stream);

/// out [count, in] <- rows [first, first + count); `first` is a multiple of 16.
struct UnpackCall {
  void* out = nullptr;
  DType dtype = DType::kBF16;
  TiledMatrix w;
  size_t first = 0, count = 0;
};
void unpack_tiles(const UnpackCall& call, cudaStream_t stream);

/// out [tokens, in] <- scale times rows ids[t].
struct PickCall {
  float* out = nullptr;
  TiledMatrix w;
  const int32_t* ids = nullptr;  // [tokens], on the device
  size_t tokens = 0;
  float scale = 1;
};
void pick_rows(const PickCall& call, cudaStream_t stream);

/// to [n] <- from [n], dense numbers of other types.
struct ConvertCall {
  void* to = nullptr;
  DType to_dtype = DType::kBF16;
  const void* from = nullptr;
  DType from_dtype = DType::kF16;
  size_t n = 0;
};
void convert_numbers(const ConvertCall& call, cudaStream_t stream);

}  // namespace pith::cuda
