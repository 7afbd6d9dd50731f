#pragma once
// Weights in tiles times a few tokens' activations, from the codes: four tokens read each weight
// once, or, with room for their coded activations, up to 16 of a launch. Activations become whole
// numbers of 16 bits, scaled in blocks of 32 (as the CPU's under --f32: a relative square error of
// 5e-10 on Gaussian inputs), products are summed in whole numbers on the tensor cores, scales are
// f32.

#include <cuda_runtime_api.h>

#include <cstddef>

#include "core/weight_type.h"
#include "kernels/cuda/matvec_end.h"

namespace pith::cuda {

/// A matrix in tiles on the device, [out, in].
struct TiledMatrix {
  const std::byte* data = nullptr;
  WeightType type = WeightType::kQ8Zero;
  size_t out = 0, in = 0;
};

inline constexpr size_t kTokensAtOnce = 4;

/// Weights that the next product begins with. The first bytes that it reads may come to the L2
/// cache while this one ends.
struct NextWeights {
  const std::byte* parts[2] = {};  ///< the second: of the gated half, or null
  size_t bytes = 0;                ///< of each
};

/// y[t] <- end(W x[t] + bias), where x is RMS-normalised first if `norm` is set.
struct TileMatvecCall {
  float* y = nullptr;  // [tokens, ld]
  size_t ld = 0;
  TiledMatrix w;
  const float* x = nullptr;     // [tokens, in]
  const float* norm = nullptr;  // [in] weight of the norm, or null
  float eps = 0;
  const float* bias = nullptr;  // [out] or null
  MatvecEnd end = MatvecEnd::kStore;
  size_t tokens = 1;
  /// By the kernel for kTokensAtOnce, however many there are: what a token gets does not depend on
  /// how many. Otherwise fewer take less time, and sums have another order.
  bool together = false;
  NextWeights next = {};
  /// Room for coded_inputs_bytes(). More than kTokensAtOnce tokens are then coded by a launch of
  /// their own, and one launch multiplies all, to the bits of `together`. Null: each kTokensAtOnce
  /// have a launch, whose blocks code them again.
  std::byte* coded = nullptr;
};

/// Bytes of `tokens` tokens' coded activations for w.
size_t coded_inputs_bytes(const TiledMatrix& w, size_t tokens);

/// True if a gated end can be fused: both halves of w must be whole tiles.
bool gate_fits(const TiledMatrix& w);

void tile_matvec(const TileMatvecCall& call, cudaStream_t stream);

}  // namespace pith::cuda
