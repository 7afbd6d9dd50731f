#pragma once
// BUZZ's choice on the GPU: of the old rows every `old_stride`-th stays, of each `new_stride` new
// rows the one with the most mass, and beside it the one whose key is most unlike all others.

#include "select/cuda/candidate_rows.h"

namespace pith::cuda {

struct BuzzCells {
  int old_stride = 0, new_stride = 0;
  int first = 0, behind = 0;  ///< rows before `first`, and the last `behind`, stay
  bool alike = false;         ///< old rows lie in runs of new ones
  bool best = true;           ///< false: the first of each run of new rows stays
  bool by_key = false;        ///< a run keeps two; then space.keys has their scores
};

void choose_cells(const SelectSpace& space, const CandidateRows& rows, const BuzzCells& cells,
                  cudaStream_t stream);
/// rows.log_weights of what stays <- the logarithm of its share of the weights of its cell.
void weigh_cells(const CandidateRows& rows, const BuzzCells& cells, cudaStream_t stream);

/// scaled [T, H, D] <- queries times log_512 of the tokens seen, at least 1. The first one's
/// position is in `note`, or on the device in `at` if that is not null.
void scale_by_log(void* scaled, const StepQueries& queries, const QueryNote& note,
                  const QueryNote* at, cudaStream_t stream);

}  // namespace pith::cuda
