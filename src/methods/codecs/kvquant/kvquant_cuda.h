#pragma once
// kvquant's tables on the GPU.

#include "kernels/cuda/layer.h"
#include "rows/cuda/level_format.h"

namespace pith::cuda {

/// levels [heads, 16] and, for keys, ranges [heads, 2, D] f16 <- those of `side` for the sample, as
/// NonUniformRows::calibrate finds them. Cost a head: the sample's numbers, gone through about 100
/// times in shared memory.
void learn_kvquant(float* levels, uint16_t* ranges, const LevelSide& side, const HeadSample& sample,
                   cudaStream_t stream);

}  // namespace pith::cuda
