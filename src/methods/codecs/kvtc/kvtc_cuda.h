#pragma once
// kvtc's coder on the GPU.

#include "rows/cuda/device_codec.h"
#include "rows/cuda/level_format.h"

namespace pith::cuda {

/// out [heads, count, D] f16 <- the sample's rows, with `turns` as they were before RoPE.
void wait_as_halves(uint16_t* out, const double* turns, const HeadSample& sample,
                    cudaStream_t stream);

/// sums [heads, D/2] <- and the queries' squares in each pair of channels that RoPE turns.
void add_energy(float* sums, const FirstQueries& queries, int heads, int dim, cudaStream_t stream);

/// Codes rows of a side along vectors; squares [heads, D/2] of the weights of keys' pairs of
/// channels, or null: they are 1. Cost a row: 3 R D multiply-adds of a warp, and R sums over
/// it one after the other.
void code_along_vectors(const LevelSide& side, const float* squares, const CodeBatch& batch,
                        std::span<const CodeJob> jobs, cudaStream_t stream);

}  // namespace pith::cuda
