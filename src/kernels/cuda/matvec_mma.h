#pragma once
// matvec() of 16-bit weights.

#include "kernels/cuda/matvec.h"

namespace pith::cuda {

/// Tokens that read the weights once.
inline constexpr size_t kMostAtOnce = 32;

/// For weights in f16 or bf16 and up to kMostAtOnce tokens.
void matvec_mma(const MatvecCall& call, cudaStream_t stream);

}  // namespace pith::cuda
