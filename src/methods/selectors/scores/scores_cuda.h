#pragma once
// The scores of the score selectors on the GPU, as keys (select/cuda/candidate_rows.h); keydiff's
// are in select/cuda/key_directions.h. Sums run in a fixed order, so that the same rows give the
// same keys.

#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

/// knorm: minus the key's squared norm. One pass over the keys.
void score_norms(const SelectSpace& space, const CandidateRows& rows, cudaStream_t stream);
/// Mass, summed over `kernel` neighbouring rows, and over all heads if they are to agree.
void score_mass(const SelectSpace& space, const CandidateRows& rows, int kernel, bool all_heads,
                cudaStream_t stream);

}  // namespace pith::cuda
