#pragma once
// select/key_directions.h on the GPU.

#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

/// space.keys <- minus the cosine between a key and the mean of all keys' directions. Two passes
/// over the keys, sums in a fixed order, so that the same rows give the same keys.
void score_directions(const SelectSpace& space, const CandidateRows& rows, cudaStream_t stream);

}  // namespace pith::cuda
