#pragma once
// kvtc's coder on the GPU.

#include "rows/cuda/level_format.h"

namespace pith::cuda {

/// out [heads, count, D] f16 <- the sample's rows, with `turns` as they were before RoPE.
void wait_as_halves(uint16_t* out, const double* turns, const HeadSample& sample,
                    cudaStream_t stream);

/// Codes rows of a side along vectors. Cost a row: 3 R D multiply-adds of a warp, and R sums over
/// it one after the other.
void code_along_vectors(const LevelSide& side, const CodeBatch& batch,
                        std::span<const CodeJob> jobs, cudaStream_t stream);

}  // namespace pith::cuda
