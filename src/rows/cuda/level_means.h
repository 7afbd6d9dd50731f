#pragma once
// Keys before RoPE around one mean for each channel of a KV head, for any rows of levels on the
// GPU: the device's half of rows/cpu/mean_rows.h.

#include <memory>

#include "rows/cuda/level_codec.h"

namespace pith::cuda {

/// `codec` with its keys before RoPE, less the mean of the first `rows` of their head, its codes in
/// rows: kernels of fragments turn nothing. 0 rows: as it is.
std::shared_ptr<const LevelCodec> around_mean(std::shared_ptr<const LevelCodec> codec, size_t rows);

/// means [heads, D] f16 <- those of the sample's rows before RoPE, rounded to f16 as they wait on
/// the CPU; `turns` as LevelSide's. Cost: the sample is read once.
void learn_means(uint16_t* means, const double* turns, const HeadSample& sample,
                 cudaStream_t stream);

}  // namespace pith::cuda
