#pragma once
// Weight matrices as files have them: runs of rows, each dense or in tiles of codes, of any types.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "kernels/cuda/matvec.h"
#include "kernels/cuda/tile_matvec.h"

namespace pith::cuda {

/// Rows of one type.
struct MatrixPart {
  const std::byte* data = nullptr;  ///< dense, or in tiles if the type has blocks
  WeightType type = WeightType::kBF16;
  size_t out = 0;

  bool tiled() const { return !dense_type(type); }
};

/// [out, in]
struct MixedMatrix {
  std::vector<MatrixPart> parts;
  size_t out = 0, in = 0;
  bool halves = false;  ///< a gate's and what it gates: their rows are read in pairs

  /// True if all of it is in tiles.
  bool tiled() const;
  /// True if few_tokens can fuse a gated end into it.
  bool gate_fuses() const;

  DeviceMatrix dense(const MatrixPart& part) const {
    return {part.data, *dense_type(part.type), part.out, in};
  }
  TiledMatrix tiles(const MatrixPart& part) const { return {part.data, part.type, part.out, in}; }
};

/// y[t] <- end(W x[t] + bias), where x is RMS-normalised first if `norm` is set. Reads weights in
/// tiles as tile_matvec.h says, dense ones as matvec.h does.
struct FewTokensCall {
  float* y = nullptr;  // [tokens, out], [tokens, out / 2] if gated
  const MixedMatrix* w = nullptr;
  const float* x = nullptr;     // [tokens, in]
  const float* norm = nullptr;  // [in] weight of the norm, or null
  float eps = 0;
  const float* bias = nullptr;  // [out] or null
  MatvecEnd end = MatvecEnd::kStore;
  size_t tokens = 1;
  bool together = false;              ///< results do not depend on the number of tokens
  const MixedMatrix* next = nullptr;  ///< what is multiplied after it, if that is known
  std::byte* coded = nullptr;  ///< room for coded_inputs_bytes() of w, or null: see TileMatvecCall
};
size_t coded_inputs_bytes(const MixedMatrix& w, size_t tokens);
void few_tokens(const FewTokensCall& call, cudaStream_t stream);

}  // namespace pith::cuda
